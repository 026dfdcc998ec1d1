"""What each launcher is told about a job across hosts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster import across
from doubletime.cluster.across import Job
from doubletime.cluster.network import Interface
from doubletime.cluster.placement import Placement
from doubletime.errors import LaunchError

SSH = ("/usr/bin/ssh", "-F", "/c", "-o", "BatchMode=yes")
ETH = Interface("eth7", "10.0.0.5", "10.0.0.0/24")
SPEAKERS = {
    "MPICH": across.hydra,
    "Intel MPI": across.intel,
    "Open MPI": across.open_mpi,
    "ssh": across.own,
}
COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def job(counts=(2, 1), **options):
    placement = Placement(tuple((f"n{index}", count) for index, count in enumerate(counts)))
    options = {
        "ssh": SSH, "in_slurm": False, "variables": ("A", "DOUBLETIME_X", "OMPI_MCA_x"),
        "folder": "/the folder", "interface": ETH, "version": "5.0.2",
    } | options  # fmt: skip
    return Job(placement, **options)


def after(words, flag):
    return words.flags[words.flags.index(flag) + 1]


@given(COUNTS)
def test_hydra_hears_hosts_with_counts(counts):
    words = across.hydra(job(counts))
    assert after(words, "-hosts") == ",".join(f"n{i}:{count}" for i, count in enumerate(counts))
    assert after(words, "-n") == str(sum(counts))


@given(COUNTS)
def test_intel_hears_each_host_as_often_as_it_takes(counts):
    """It ignores `host:2`; but a host named again gets `-ppn` ranks more."""
    words = across.intel(job(counts))
    named = after(words, "-hosts").split(",")
    placed = [name for name in named for _ in range(int(after(words, "-ppn")))]
    assert placed == list(job(counts).placement.host_of)
    assert words.environment["I_MPI_PIN"] == "0"
    assert words.environment["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] == "0"


@given(COUNTS)
def test_open_mpi_hears_slots(counts):
    words = across.open_mpi(job(counts))
    assert after(words, "--host") == ",".join(f"n{i}:{count}" for i, count in enumerate(counts))
    assert after(words, "-n") == str(sum(counts))


@pytest.mark.parametrize("name", ["MPICH", "Intel MPI", "Open MPI"])
def test_the_folder_is_carried_over(name):
    words = SPEAKERS[name](job())
    assert "/the folder" in words.flags


def test_each_reaches_hosts_by_the_ssh_that_was_named():
    line = "-F /c -o BatchMode=yes"
    hydra, intel, prrte = across.hydra(job()), across.intel(job()), across.open_mpi(job())
    assert hydra.flags[:4] == ("-launcher", "ssh", "-launcher-exec", "/usr/bin/ssh")
    assert hydra.environment["HYDRA_LAUNCHER_EXTRA_ARGS"] == line
    assert intel.flags[:4] == hydra.flags[:4]
    assert intel.environment["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == line
    assert prrte.environment["PRTE_MCA_plm_ssh_agent"] == f"/usr/bin/ssh {line}"
    orte = across.open_mpi(job(version="4.1.6"))
    assert orte.environment["OMPI_MCA_plm_rsh_agent"] == f"/usr/bin/ssh {line}"
    own = across.own(job()).flags
    assert own == ("--hosts", "n0:2,n1:1", "--ssh-command", f"/usr/bin/ssh {line}", "--")


def test_each_uses_srun_where_slurm_has_allotted_the_hosts():
    assert across.hydra(job(ssh=None)).flags[:2] == ("-launcher", "slurm")
    assert across.intel(job(ssh=None)).flags[:2] == ("-launcher", "slurm")
    assert "ssh" not in str(across.open_mpi(job(ssh=None, in_slurm=True)))
    with pytest.raises(LaunchError, match="reached by ssh"):
        across.own(job(ssh=None))


def test_open_mpi_is_kept_from_slurm_where_ssh_was_named():
    assert across.open_mpi(job(in_slurm=True)).environment["PRTE_MCA_plm"] == "ssh"
    assert "PRTE_MCA_plm" not in across.open_mpi(job()).environment


def test_the_launcher_itself_is_reached_by_the_interface_that_leads_to_the_hosts():
    assert after(across.hydra(job()), "-localhost") == "10.0.0.5"
    assert after(across.intel(job()), "-iface") == "eth7"
    assert across.open_mpi(job()).environment["PRTE_MCA_prte_if_include"] == "10.0.0.0/24"
    old = across.open_mpi(job(version="4.1.6"))
    assert old.environment["OMPI_MCA_oob_tcp_if_include"] == "10.0.0.0/24"
    for speak in SPEAKERS.values():
        told = str(speak(job(interface=None)))
        assert "eth7" not in told
        assert "10.0.0" not in told


def test_variables_are_handed_over_and_those_that_supervision_adds():
    handed = "A,DOUBLETIME_X,OMPI_MCA_x,DOUBLETIME_CONTROL"
    assert after(across.hydra(job()), "-genvlist") == handed
    assert after(across.intel(job()), "-genvlist") == handed
    prrte = across.open_mpi(job()).flags
    assert [name for flag, name in itertools.pairwise(prrte) if flag == "-x"] == [
        "A", "DOUBLETIME_*"
    ]  # fmt: skip
    orte = across.open_mpi(job(version="4.1.6"))
    assert "DOUBLETIME_CONTROL" in orte.flags
    assert orte.environment["DOUBLETIME_CONTROL"] == ""


@pytest.mark.parametrize("name", ["MPICH", "Intel MPI", "Open MPI"])
@pytest.mark.parametrize("option", ["/my files/config", "a'b", 'a"b', ""])
def test_what_a_launcher_would_tear_apart_is_refused(name, option):
    with pytest.raises(LaunchError, match=r"splits at blanks.*\n.*--ssh-command FILE"):
        SPEAKERS[name](job(ssh=("ssh", "-F", option)))
    assert "'/my files/config'" in across.own(job(ssh=("ssh", "-F", "/my files/config"))).flags[3]
