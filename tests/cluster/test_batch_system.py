"""The script for Slurm, as text; that Slurm takes it is tested on a real one (cluster/virtual)."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.batch_system import Launch, SlurmJob, job_number, slurm_script
from doubletime.errors import LaunchError


def _script(launch=None, **asked):
    job = SlurmJob(**{"name": "train", "nodes": 2, "folder": "/home/ada", **asked})
    return slurm_script(job, launch or Launch(["train.py"]), "/venv/bin/python")


def test_a_plain_job_is_short_and_readable():
    assert _script() == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=train\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --output=train-%j.log\n"
        "#SBATCH --chdir=/home/ada\n"
        "\n"
        "set -eu\n"
        "# Each host's ranks divide its cores among themselves; Slurm shall not bind them first.\n"
        "export SLURM_CPU_BIND=none\n"
        "# The hosts, and how many ranks on each, come from Slurm. exec: signals reach the job.\n"
        "exec /venv/bin/python -m doubletime run train.py\n"
    )


def test_what_is_asked_stands_in_it():
    script = _script(
        Launch(["-m", "pkg", "a b"], "gloo", {"A": "it's"}, max_restarts=3, min_hosts=2),
        cpus=8, gpus=4, time="2-12:00", partition="gpu", account="phys", output="/logs/%j",
        options={"qos": "high", "exclusive": None}, setup=["module load openmpi"],
    )  # fmt: skip
    for line in (
        *("--ntasks-per-node=4", "--cpus-per-task=8", "--gpus-per-node=4", "--time=2-12:00"),
        *("--partition=gpu", "--account=phys", "--output=/logs/%j", "--no-kill"),
        *("--qos=high", "--exclusive"),
    ):
        assert f"#SBATCH {line}\n" in script
    assert "\nmodule load openmpi\n" in script
    start = script[script.index("\nexec ") :].replace("\\\n", " ")
    assert shlex.split(start) == [
        *("exec", "/venv/bin/python", "-m", "doubletime", "run", "--backend", "gloo"),
        *("--env", "A=it's", "--max-restarts", "3", "--min-hosts", "2", "-m", "pkg", "a b"),
    ]


def test_an_option_of_ones_own_wins():
    assert "--ntasks-per-node=3\n" in _script(options={"ntasks-per-node": "3"})


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=8))
def test_arguments_come_through_the_shell_unharmed(arguments):
    program = ["/bin/echo", *arguments]
    script = _script(Launch(program))
    line = script[script.index("exec /venv") :].replace("/venv/bin/python", "printf '%s\\0' x", 1)
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    expected = ["x", "-m", "doubletime", "run", *program]
    assert done.stdout == b"".join(word.encode() + b"\0" for word in expected)


@pytest.mark.parametrize("time", ["90", "90:00", "01:30:00", "2-12", "2-12:30", "2-12:30:15"])
def test_times_of_slurm_are_taken(time):
    assert f"#SBATCH --time={time}\n" in _script(time=time)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"nodes": 0}, "no hosts to run on"),
        ({"time": "1h"}, "'1h' is no time"),
        ({"options": {"a b": None}}, "'a b' is no option"),
        ({"options": {"comment": "a\nb"}}, "line by line"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked, what):
    with pytest.raises(LaunchError, match=what):
        _script(**asked)


@pytest.mark.parametrize(("said", "number"), [("12\n", "12"), ("12;big\n", "12")])
def test_the_number_of_a_job_is_read(said, number):
    assert job_number(said) == number
