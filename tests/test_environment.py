"""What each launcher says, as it said it: variables recorded from real jobs."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime import environment
from doubletime.environment import Machine, Place, hosts_of, job_hosts, machine, own_cores, place
from doubletime.errors import UnitError

# Recorded: rank 1 of 2 on one host, the variables that name a rank or a size.
RECORDED = {
    "Open MPI": (
        {
            "OMPI_APP_CTX_NUM_PROCS": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "OMPI_COMM_WORLD_NODE_RANK": "1",
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_UNIVERSE_SIZE": "2",
            "PMIX_RANK": "1",
        },
        Place("Open MPI", True, 1, 2, 1, 2),
    ),
    "MPICH": (
        {
            "MPI_LOCALNRANKS": "2",
            "MPI_LOCALRANKID": "1",
            "PMI_FD": "8",
            "PMI_RANK": "1",
            "PMI_SIZE": "2",
        },
        Place("MPICH or Intel MPI", True, 1, 2, 1, 2),
    ),
    "Intel MPI": (
        {
            "MPI_LOCALNRANKS": "2",
            "MPI_LOCALRANKID": "1",
            "PMI_FD": "9",
            "PMI_RANK": "1",
            "PMI_SIZE": "2",
        },
        Place("MPICH or Intel MPI", True, 1, 2, 1, 2),
    ),
    "torchrun": (
        {
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "RANK": "1",
            "ROLE_RANK": "1",
            "ROLE_WORLD_SIZE": "2",
            "WORLD_SIZE": "2",
        },
        Place("torchrun", False, 1, 2, 1, 2),
    ),
    "Slurm": (
        {
            "SLURM_JOB_ID": "1",
            "SLURM_LOCALID": "1",
            "SLURM_NNODES": "1",
            "SLURM_NPROCS": "2",
            "SLURM_NTASKS": "2",
            "SLURM_PROCID": "1",
            "SLURM_STEP_NUM_TASKS": "2",
        },
        Place("Slurm", True, 1, 2, 1, None),
    ),
}


@pytest.mark.parametrize("launcher", RECORDED)
def test_each_launcher_is_understood(launcher):
    environ, expected = RECORDED[launcher]
    assert place(environ) == expected


def test_a_plain_python_has_no_place():
    assert place({"PATH": "/usr/bin", "HOME": "/root"}) is None


@pytest.mark.parametrize("inner", ["Open MPI", "MPICH", "torchrun"])
def test_a_launcher_started_inside_a_slurm_step_is_the_one_that_counts(inner):
    step = {**RECORDED["Slurm"][0], "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    environ, expected = RECORDED[inner]
    assert place({**step, **environ}) == expected


def test_a_batch_script_is_no_rank():
    """sbatch sets SLURM_PROCID and the job's task count, but no step has begun."""
    assert place({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None


@pytest.mark.parametrize("missing", ["PMI_RANK", "PMI_SIZE"])
def test_half_a_launcher_is_none(missing):
    environ = dict(RECORDED["MPICH"][0])
    del environ[missing]
    assert place(environ) is None


@given(st.dictionaries(st.sampled_from(["RANK", "WORLD_SIZE", "PMI_RANK"]), st.text(max_size=4)))
def test_no_value_breaks_it(environ):
    found = place(environ)
    assert found is None or found.launcher == "torchrun"


def test_real_launchers_say_what_is_recorded(mpi):
    from ranks import run_ranks

    source = """
        import sys
        from doubletime.environment import place
        sys.stdout.write(repr(place()) + "\\n")
    """
    ended = run_ranks(source, 2, mpi=mpi).check()
    name = "Open MPI" if mpi == "openmpi" else "MPICH or Intel MPI"
    places = [Place(name, True, rank, 2, rank, 2) for rank in range(2)]
    assert sorted(ended.stdout.splitlines()) == [repr(found) for found in places]


def test_own_cores_are_those_of_the_affinity():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert own_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert 1 <= own_cores() <= len(allowed)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
        ({"cpu.max": "nonsense\n"}, None),
    ],
)
def test_the_quota_of_a_control_group(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert environment._cgroup_cores(tmp_path) == cores


@pytest.mark.parametrize(("value", "means"), [("0", False), ("1", True), (None, None)])
def test_a_switch_is_0_or_1(monkeypatch, value, means):
    monkeypatch.delenv("DOUBLETIME_X", raising=False)
    if value is not None:
        monkeypatch.setenv("DOUBLETIME_X", value)
    assert environment.switch("DOUBLETIME_X") is means


@pytest.mark.parametrize("value", ["", "yes", "2", "true"])
def test_a_switch_set_to_nonsense_is_refused(monkeypatch, value):
    monkeypatch.setenv("DOUBLETIME_X", value)
    with pytest.raises(UnitError, match=rf"DOUBLETIME_X='{value}' is neither 0 nor 1"):
        environment.switch("DOUBLETIME_X")


def test_a_step_of_one_task_is_a_plain_python():
    """`srun --pty bash` makes a shell within an allocation."""
    step = {**RECORDED["Slurm"][0], "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert place(step) is None


def test_a_step_with_pmi_tells_local_ranks_in_slurms_words():
    """`srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE, and nothing of MPICH's own launcher."""
    step = {**RECORDED["Slurm"][0], "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert place(step) == RECORDED["Slurm"][1]


MACHINES = st.lists(st.builds(Machine, st.sampled_from("ab"), st.sampled_from("xyz")), max_size=8)


@given(MACHINES)
def test_machines_are_told_apart_whatever_they_are_called(machines):
    names = hosts_of(machines)
    assert len(set(names)) == len(set(machines))
    assert len(set(zip(names, machines, strict=True))) == len(set(machines))
    assert all(
        name.partition("#")[0] == each.name for name, each in zip(names, machines, strict=True)
    )


def test_a_machine_alone_goes_by_its_name():
    assert hosts_of([machine(), machine()]) == [os.uname().nodename] * 2
    assert machine().identity


def test_the_hosts_of_a_job_as_its_owner_names_them():
    assert job_hosts({}) == ()
    assert job_hosts({"DOUBLETIME_HOSTS": "a,b.c"}) == ("a", "b.c")
