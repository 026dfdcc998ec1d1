"""From a command to one exact command line."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster import launch
from doubletime.cluster.implementations import DIALECTS, Implementation
from doubletime.cluster.placement import Placement
from doubletime.errors import LaunchError

PYTHON = "/venv/bin/python"
WORDS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1)


def implementation(name):
    return Implementation(name, "1.0", Path("/mpi/bin/mpiexec"))


def planned(command, ranks, name="MPICH", **options):
    options = {
        "cores": launch.Cores(own=8, online=8),
        "python": PYTHON,
        "user_environment": {},
    } | options
    return launch.plan(command, ranks, implementation(name), **options)


MPIS = st.sampled_from(sorted(DIALECTS))


@given(name=MPIS, ranks=st.integers(1, 300), own=st.integers(1, 256), extra=st.integers(0, 256))
def test_threads_never_outnumber_own_cores_unless_ranks_do(name, ranks, own, extra):
    plan = planned([PYTHON, "x.py"], ranks, name, cores=launch.Cores(own, own + extra))
    threads = int(plan.environment["OMP_NUM_THREADS"])
    assert threads >= 1
    assert threads * ranks <= max(own, ranks)
    assert plan.argv[plan.argv.index("-n") + 1] == str(ranks)
    assert "{" not in plan.shell()


@given(name=MPIS, command=st.lists(WORDS, min_size=1), ranks=st.integers(1, 9))
def test_the_command_arrives_whole_and_the_printed_line_is_the_same(name, command, ranks):
    plan = planned(command, ranks, name)
    assert list(plan.argv[-len(command) :]) == command or command[:2] == [PYTHON, "-u"]
    words = shlex.split(plan.shell())
    assert words[0] == "env"
    assert tuple(words[1 + len(plan.environment) :]) == plan.argv
    assert dict(w.split("=", 1) for w in words[1 : 1 + len(plan.environment)]) == plan.environment


@pytest.mark.parametrize(
    ("name", "bound", "unbound"),
    [
        ("MPICH", "-bind-to hwthread:4", "-bind-to none"),
        ("MVAPICH", "-bind-to hwthread:4", "-bind-to none"),
        ("Open MPI", "--use-hwthread-cpus --map-by slot:PE=4 --bind-to hwthread", "--bind-to none"),
        ("Intel MPI", "I_MPI_PIN=1 I_MPI_PIN_DOMAIN=4", "I_MPI_PIN=0"),
    ],
)
def test_ranks_are_bound_where_each_has_cores_of_its_own(name, bound, unbound):
    assert bound in planned(["x"], 2, name).shell()
    for case in (
        planned(["x"], 9, name),  # more ranks than cores
        planned(["x"], 1, name),  # all cores are its own anyway
        planned(["x"], 2, name, bind=False),
        planned(["x"], 2, name, cores=launch.Cores(own=8, online=64)),  # a part of the host
    ):
        assert unbound in case.shell()
        assert bound not in case.shell()


def test_what_the_user_has_set_stays():
    plan = planned(
        ["x"], 2, "Intel MPI", user_environment={"OMP_NUM_THREADS": "7", "I_MPI_PIN": "0"}
    )
    assert "OMP_NUM_THREADS" not in plan.environment
    assert "I_MPI_PIN" not in plan.environment
    assert (
        planned(["x"], 2, environment={"OMP_NUM_THREADS": "3"}).environment["OMP_NUM_THREADS"]
        == "3"
    )


def test_open_mpi_lets_root_in_only_where_the_user_is_root():
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" in planned(["x"], 2, "Open MPI", is_root=True).shell()
    assert "ROOT" not in planned(["x"], 2, "Open MPI").shell()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([PYTHON, "x.py", "-u"], ["x.py", "-u"]),
        ([PYTHON, "-u", "x.py"], ["x.py"]),
        ([PYTHON, "-m", "a.b", "-n"], ["-m", "a.b", "-n"]),
        ([PYTHON, "-X", "dev", "x.py"], ["--", PYTHON, "-X", "dev", "x.py"]),
        (["./program", "-m"], ["--", "./program", "-m"]),
        ([PYTHON], ["--", PYTHON]),
    ],
)
def test_scripts_run_inside_the_watch_and_programs_under_it(command, expected):
    argv = planned(command, 2).argv
    assert list(argv[argv.index("doubletime.cluster.rank") + 1 :]) == expected


def test_nothing_to_start_is_refused():
    with pytest.raises(LaunchError, match="0 ranks"):
        planned(["x"], 0)
    with pytest.raises(LaunchError, match="no command"):
        planned([], 2)


def across(name="MPICH", **options):
    options = {"placement": Placement((("a", 2), ("b", 1))), "ssh": ("ssh",)} | options
    return planned([PYTHON, "x.py"], 3, name, **options)


@given(
    name=st.sampled_from([*sorted(DIALECTS), "ssh"]),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    command=st.lists(WORDS, min_size=1),
)
def test_across_hosts_the_command_arrives_whole_too(name, counts, command):
    placement = Placement(tuple((f"n{index}", count) for index, count in enumerate(counts)))
    plan = planned(command, placement.ranks, name, placement=placement, ssh=("ssh",))
    assert list(plan.argv[-len(command) :]) == command or command[:2] == [PYTHON, "-u"]
    assert plan.environment["DOUBLETIME_HOSTS"] == ",".join(placement.hosts)
    assert tuple(shlex.split(plan.shell())[1 + len(plan.environment) :]) == plan.argv


def test_our_own_launcher_is_a_module_of_this_python():
    argv = planned([PYTHON, "x.py"], 3, "ssh", placement=Placement((("a", 3),)), ssh=("ssh",)).argv
    module = ("-m", "doubletime.cluster.sshexec", "--hosts", "a:3")
    assert argv[1:5] == module
    assert argv[argv.index("--") + 1 :][:3] == (PYTHON, "-m", "doubletime.cluster.rank")


def test_across_hosts_each_divides_its_own_cores():
    plan = across()
    assert "OMP_NUM_THREADS" not in plan.environment
    assert "-bind-to none" in plan.shell()
    assert "DOUBLETIME_BIND" not in plan.environment
    assert across(bind=True).environment["DOUBLETIME_BIND"] == "1"
    assert "DOUBLETIME_BIND" not in across(bind=False).environment


def test_an_outer_job_does_not_rub_off():
    outer = {"DOUBLETIME_HOSTS": "x,y", "DOUBLETIME_LAUNCHER": "run"}
    assert across(user_environment=outer).environment["DOUBLETIME_HOSTS"] == "a,b"


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_variables_of_the_command_line_reach_ranks_on_other_hosts(name):
    plan = across(name, environment={"SAID": "a b"}, user_environment={"OMP_NUM_THREADS": "3"})
    assert plan.environment["SAID"] == "a b"
    assert "SAID" in plan.shell().partition("mpiexec")[2]
    assert "OMP_NUM_THREADS" in plan.shell().partition("mpiexec")[2]
    assert "OMP_NUM_THREADS" not in plan.environment


def test_what_tells_of_this_host_or_login_stays_here():
    stays = [
        "HOSTNAME",
        "HOME",
        "TMPDIR",
        "SSH_AUTH_SOCK",
        "DISPLAY",
        "SLURM_JOB_ID",
        "PWD",
        "USER",
    ]
    goes = ["CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "LD_LIBRARY_PATH", "MASTER_PORT",
            "NCCL_DEBUG", "OMP_PROC_BIND", "PATH", "PYTHONPATH", "TORCH_LOGS"]  # fmt: skip
    environ = dict.fromkeys([*stays, *goes], "x")
    assert list(launch.handed_over(environ)) == goes
    assert launch.handed_over(environ, also=["TMPDIR"]) == tuple(sorted([*goes, "TMPDIR"]))


def test_mvapich_is_told_not_to_bind_on_other_hosts_too():
    plan = across("MVAPICH")
    assert plan.environment["MV2_ENABLE_AFFINITY"] == "0"
    assert "MV2_ENABLE_AFFINITY" in plan.argv[plan.argv.index("-genvlist") + 1].split(",")
