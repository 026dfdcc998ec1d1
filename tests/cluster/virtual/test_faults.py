"""What breaks under a job across hosts: whatever it is, the job ends everywhere, and the cause is named once."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ranks import MPIS, Job, Ranks, start_command, venv
from vcluster import jobs
from vcluster.cluster import VirtualCluster

_HOSTS = ("node1", "node2", "node3")
# Starts a command in a process group of its own, as a shell does: else the system would not stop it.
_AS_A_SHELL = (
    sys.executable,
    "-c",
    "import subprocess, sys; "
    "code = subprocess.Popen(sys.argv[1:], process_group=0).wait(); "
    "sys.exit(code if code >= 0 else 128 - code)",
)
_ENDS_WITHIN_S = 10.0
# Each rank has a process that has left its session, and waits in MPI for what never comes.
_WAITING = """
    import os, subprocess, sys
    from mpi4py import MPI
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
    MPI.COMM_WORLD.Barrier()
    os.write(1, b"up\\n")
    MPI.COMM_WORLD.recv(source=(MPI.COMM_WORLD.rank + 1) % MPI.COMM_WORLD.size)
"""
# Until told to stop, sums that must be right.
_SUMMING = """
    import os, sys, time, pathlib, torch, torch.distributed as dist
    dist.init_process_group("mpi")
    stop, steps = torch.zeros(1), 0
    while not stop:
        total = torch.full((1000,), dist.get_rank() + 1.0)
        dist.all_reduce(total)
        assert (total == 6).all()
        stop.fill_(pathlib.Path(sys.argv[1]).exists())
        dist.all_reduce(stop)
        steps += 1
        if steps == 3:
            os.write(1, b"up\\n")
        time.sleep(0.02)
    os.write(1, f"done\\n".encode())
    dist.destroy_process_group()
"""
# The same without torch, which takes seconds to load.
_COUNTING = """
    import os, sys, time, pathlib
    from mpi4py import MPI
    world, steps = MPI.COMM_WORLD, 0
    while world.allreduce(pathlib.Path(sys.argv[1]).exists()) == 0:
        steps += 1
        if steps == 3:
            os.write(1, b"up\\n")
        time.sleep(0.02)
    os.write(1, b"done\\n")
"""
# A rank whose data come from a process of its own.
_LOADING = """
    import os, time, torch
    from mpi4py import MPI

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 10_000
        def __getitem__(self, index):
            time.sleep(0.05)
            return index

    for index, _ in enumerate(torch.utils.data.DataLoader(Slow(), num_workers=1)):
        if index == 1:
            os.write(1, b"up\\n")
        MPI.COMM_WORLD.Barrier()
"""


@dataclass(frozen=True)
class _Running:
    """A job on node1, node2 and node3, one rank each, started on node1."""

    cluster: VirtualCluster
    job: Job

    def processes(self, host: str) -> list[psutil.Process]:
        return self.cluster.job_processes(host)

    def find(self, host: str, is_it: Callable[[psutil.Process], bool]) -> psutil.Process:
        found = [each for each in self.processes(host) if is_it(each)]
        assert len(found) == 1, (found, self.processes(host))
        return found[0]

    def launcher(self) -> psutil.Process:
        """`doubletime run` itself, not what has entered the host and waits for it."""
        return self.find(
            "node1",
            lambda each: each.cmdline()[1:4] == ["-m", "doubletime", "run"],
        )

    def mpiexec(self) -> psutil.Process:
        return self.launcher().children()[0]

    def rank(self, host: str) -> psutil.Process:
        """The rank, not its watch."""
        return self.find(
            host,
            lambda each: _is_rank(each) and not any(map(_is_rank, each.children())),
        )

    def own(self, host: str) -> list[psutil.Process]:
        """What the job runs on a host, but for the login's sshd."""
        return [each for each in self.processes(host) if not _is_sshd(each)]

    def ended(self, within_s: float = _ENDS_WITHIN_S) -> Ranks:
        """How the job has ended, once no process of it is left on any host."""
        began_s = time.monotonic()
        while any(map(self.processes, self.cluster.hosts)):
            left = {host: _shown(self.processes(host)) for host in self.cluster.hosts}
            assert time.monotonic() - began_s < within_s, (left, *self.job.output())
            time.sleep(0.02)
        return self.job.wait(60)


def _is_rank(process: psutil.Process) -> bool:
    return "doubletime.cluster.rank" in process.cmdline()[:3] and process.name().startswith("py")


def _is_sshd(process: psutil.Process) -> bool:
    try:
        return process.name() == "sshd"
    except psutil.NoSuchProcess:
        return True


def _shown(processes: list[psutil.Process]) -> list[str]:
    shown = []
    for each in processes:
        try:
            shown.append(f"{each.pid} of {each.ppid()} {each.status()}: {' '.join(each.cmdline())}")
        except psutil.NoSuchProcess:
            continue
    return shown


def _command(
    cluster: VirtualCluster,
    mpi: str | None,
    script: Path,
    hosts: tuple[str, ...],
    prefix: tuple[str, ...] = (),
) -> list[str]:
    """`doubletime run` on node1."""
    return [
        *cluster.enter("node1"),
        *prefix,
        *(str(venv(mpi) / "bin" / "python"), "-m", "doubletime", "run"),
        *("--ssh-config", str(cluster.folder / "ssh_config"), "--hosts", ",".join(hosts)),
        str(script),
    ]


@contextmanager
def _running(
    cluster: VirtualCluster,
    mpi: str | None,
    program: str = _WAITING,
    hosts: tuple[str, ...] = _HOSTS,
    args: tuple[str, ...] = (),
    env: dict[str, str | None] | None = None,
    prefix: tuple[str, ...] = (),
) -> Iterator[_Running]:
    command = [*_command(cluster, mpi, jobs.script(cluster, program), hosts, prefix), *args]
    with start_command(command, mpi=mpi, env=env) as job:
        try:
            end_s = time.monotonic() + 40
            ranks = sum(int(host.partition(":")[2] or 1) for host in hosts)
            while job.output()[0].count("up\n") < ranks:
                assert job.process.poll() is None, job.output()
                assert time.monotonic() < end_s, job.output()
                time.sleep(0.02)
            yield _Running(cluster, job)
        finally:
            cluster.end_jobs()


def _kill_rank(running: _Running) -> None:
    running.rank("node2").kill()


def _kill_mpiexec(running: _Running) -> None:
    running.mpiexec().kill()


def _kill_launcher(running: _Running) -> None:
    running.launcher().kill()


def _signal(number: int) -> Callable[[_Running], None]:
    return lambda running: running.launcher().send_signal(number)


_FAULTS = {
    "a rank killed": (
        _kill_rank,
        137,
        "rank 1 on host node2 failed:\ndied by signal 9 (SIGKILL)\n",
    ),
    "mpiexec killed": (_kill_mpiexec, 137, "its mpiexec died by signal 9\n"),
    "the launcher killed": (_kill_launcher, 137, None),  # which says nothing any more
    "Ctrl-C": (_signal(signal.SIGINT), 130, "doubletime: ended by SIGINT\n"),
    "terminated": (_signal(signal.SIGTERM), 143, "doubletime: ended by SIGTERM\n"),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_the_job_ends_everywhere_and_says_why(
    cluster: VirtualCluster, mpi: str, fault: str
) -> None:
    harm, exit_code, story = _FAULTS[fault]
    with _running(cluster, mpi) as running:
        harm(running)
        ended = running.ended()
    if story is not None:
        assert ended.exit_code == exit_code, ended.show()
        assert ended.stderr.count("doubletime: ") == 1, ended.show()
        assert story in ended.stderr[ended.stderr.index("doubletime: ") :], ended.show()


def test_a_killed_rank_s_shared_memory_is_removed(cluster: VirtualCluster, mpi: str) -> None:
    shm = ["ls", "/dev/shm"]
    before = cluster.exec("node2", shm).stdout
    with _running(cluster, mpi, hosts=("node1", "node2:2")) as running:
        ranks = [each for each in running.processes("node2") if _is_rank(each)]
        victim = next(each for each in ranks if not any(map(_is_rank, each.children())))
        victim.kill()
        ended = running.ended()
    assert ended.exit_code == 137, ended.show()
    assert cluster.exec("node2", shm).stdout == before


def test_a_data_loader_s_worker_killed(cluster: VirtualCluster, mpi: str) -> None:
    with _running(cluster, mpi, _LOADING, hosts=("node1", "node2")) as running:
        (worker,) = running.rank("node2").children()
        worker.kill()
        ended = running.ended()
    assert ended.exit_code == 1, ended.show()
    assert ended.stderr.count("doubletime: ") == 1, ended.show()
    assert "doubletime: rank 1 on host node2 failed:\nTraceback" in ended.stderr
    assert "killed by signal: Killed" in ended.stderr


def test_the_terminal_closed(cluster: VirtualCluster, mpi: str) -> None:
    terminal, inside = pty.openpty()
    command = _command(cluster, mpi, jobs.script(cluster, _WAITING), _HOSTS)
    process = subprocess.Popen(
        [*("setsid", "--ctty"), *command],
        **dict.fromkeys(("stdin", "stdout", "stderr"), inside),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{venv(mpi)}/bin:{os.environ['PATH']}"},
    )
    os.close(inside)
    try:
        said = b""
        while said.count(b"up") < len(_HOSTS):
            said += os.read(terminal, 1000)
    finally:
        os.close(terminal)
        began_s = time.monotonic()
        while any(map(cluster.job_processes, cluster.hosts)):
            assert time.monotonic() - began_s < _ENDS_WITHIN_S, said
            time.sleep(0.02)
        assert process.wait(10) != 0


def test_a_link_cut_for_good(cluster: VirtualCluster, mpi: str) -> None:
    with _running(cluster, mpi) as running:
        cluster.cut("node2")
        began_s = time.monotonic()
        while any(map(running.processes, _HOSTS)):  # each side by its own clock
            left = [_shown(running.processes(host)) for host in _HOSTS]
            assert time.monotonic() - began_s < _ENDS_WITHIN_S, left
            time.sleep(0.02)
        cluster.heal("node2")
        ended = running.ended()
    assert ended.exit_code == 1, ended.show()
    assert ended.stderr.count("doubletime: ") == 1, ended.show()
    assert "doubletime: host node2 has not answered for 6 s: " in ended.stderr, ended.show()


def test_a_host_killed(own_cluster: VirtualCluster, mpi: str) -> None:
    with _running(own_cluster, mpi, hosts=("node1", "node2")) as running:
        own_cluster.kill("node2")
        ended = running.ended()
    assert ended.exit_code == 1, ended.show()
    assert ended.stderr.count("doubletime: ") == 1, ended.show()
    assert "doubletime: host node2 " in ended.stderr, ended.show()


def test_a_host_frozen_and_thawed(cluster: VirtualCluster, mpi: str) -> None:
    with _running(cluster, mpi, env={"DOUBLETIME_SILENCE_S": "4"}) as running:
        cluster.freeze("node2")
        try:
            running.job.process.wait(_ENDS_WITHIN_S)
        finally:
            cluster.thaw("node2")
        ended = running.ended()
    assert ended.exit_code == 1, ended.show()
    assert ended.stderr.count("doubletime: ") == 1, ended.show()
    assert "doubletime: host node2 has not answered for 4 s: " in ended.stderr, ended.show()


@pytest.mark.parametrize(
    ("mpi", "hosts"), [*((mpi, _HOSTS) for mpi in MPIS), ("mpich", ("node1",))]
)
def test_a_launcher_stopped_and_continued(
    cluster: VirtualCluster, mpi: str, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    """Ctrl-Z stops all ranks on all hosts, longer than any silence is borne; `fg` has them go on."""
    stop = tmp_path / "stop"
    env = {"DOUBLETIME_SILENCE_S": "2"}
    with _running(
        cluster, mpi, _COUNTING, hosts, args=(str(stop),), env=env, prefix=_AS_A_SHELL
    ) as running:
        ranks = [running.rank(host) for host in hosts]
        running.launcher().send_signal(signal.SIGTSTP)
        _wait_until_stopped([running.launcher(), *ranks])
        time.sleep(3)
        running.launcher().send_signal(signal.SIGCONT)
        stop.touch()
        done = running.ended(30)
    assert done.check().stdout.count("done\n") == len(hosts)
    assert done.stderr == ""


@pytest.mark.parametrize("fault", ["terminated", "killed", "cut"])
def test_a_job_that_stands_still_ends_too(cluster: VirtualCluster, fault: str) -> None:
    env = {"DOUBLETIME_SILENCE_S": "2"}
    with _running(cluster, "mpich", env=env, prefix=_AS_A_SHELL) as running:
        launcher = running.launcher()
        ranks = [running.rank(host) for host in _HOSTS]
        launcher.send_signal(signal.SIGTSTP)
        _wait_until_stopped([launcher, *ranks])
        if fault == "cut":
            cluster.cut("node2")
            _wait_until(lambda: not running.own("node2"), _ENDS_WITHIN_S)
            cluster.heal("node2")
        else:
            launcher.send_signal(signal.SIGTERM if fault == "terminated" else signal.SIGKILL)
        if fault != "killed":
            launcher.send_signal(signal.SIGCONT)
        ended = running.ended()
    if fault == "cut":  # known to the host at once, and to the launcher when it goes on
        assert ended.exit_code == 1, ended.show()
        assert ended.stderr.count("doubletime: ") == 1, ended.show()
        assert "doubletime: host node2 was out of reach while the job stood still" in ended.stderr
    else:
        assert ended.exit_code == {"terminated": 143, "killed": 137}[fault], ended.show()


def _wait_until_stopped(processes: list[psutil.Process]) -> None:
    _wait_until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in processes), 5)


def _wait_until(is_so: Callable[[], bool], within_s: float) -> None:
    end_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_link_cut_for_3_s_is_survived(cluster: VirtualCluster, mpi: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with _running(cluster, mpi, _SUMMING, args=(str(stop),)) as running:
        cluster.cut("node2")
        time.sleep(3)
        cluster.heal("node2")
        time.sleep(1)
        stop.touch()
        done = running.ended(30)
    assert done.check().stdout.count("done\n") == 3
    assert done.stderr == ""
