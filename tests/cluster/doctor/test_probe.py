"""The agent on this machine: facts and answers, by this Python and by the oldest that hosts may have."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doubletime.cluster.doctor import probe, session
from doubletime.cluster.doctor.session import Login, Lost
from doubletime.cluster.ssh import Ssh

_VERSIONS = Path("~/.pyenv/versions").expanduser()
_QUESTION = {"names": ["localhost", "no-such-host.invalid"], "script": None}


def _ask(argv: list[str], *questions: dict[str, Any]) -> list[Any]:
    async def visit() -> list[Any]:
        login = await session.open_session("here", argv, 20)
        assert login.session is not None, login
        try:
            return [await login.session.ask(timeout_s=20, **question) for question in questions]
        finally:
            await login.session.close()

    return asyncio.run(visit())


@pytest.mark.parametrize("python", ["own", "3.6.15", "3.8.18", "3.13.0"])
def test_an_agent_answers_by_any_python_since_3_6(python: str, tmp_path: Path) -> None:
    argv = session.local_argv()
    if python != "own":
        argv[0] = str(_VERSIONS / python / "bin" / "python")
        if not Path(argv[0]).exists():
            pytest.skip(f"there is no Python {python} here")
    (tmp_path / "train.py").write_text("print()")
    facts, port = _ask(
        argv,
        {"do": "facts", **_QUESTION, "folder": str(tmp_path), "checkpoints": str(tmp_path),
         "script": str(tmp_path / "train.py")},
        {"do": "listen"},
    )  # fmt: skip
    assert facts["python"]["executable"] == argv[0]
    assert facts["uid"] == os.getuid()
    assert facts["names"]["no-such-host.invalid"] == []
    assert facts["cores"]["own"] == len(os.sched_getaffinity(0))
    assert facts["checkpoints"]["error"] is None
    assert len(facts["script"]["sha256"]) == 64
    assert port > 0
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    if python == "own":
        assert facts["packages"]["doubletime"] is not None
        assert "Version" in facts["library"]["text"]


def test_an_agent_connects_and_measures() -> None:
    async def visit() -> list[Any]:
        login = await session.open_session("here", session.local_argv(), 20)
        assert login.session is not None
        host = login.session
        try:
            port = await host.ask("listen", 20)
            targets = [{"address": "127.0.0.1", "port": each} for each in (port, 1)]
            answers = await host.ask("connect", 20, targets=targets)
            where = {"address": "127.0.0.1", "port": port}
            return [*answers, await host.ask("rate", 20, **where, seconds=0.1)]
        finally:
            await host.close()

    open_, closed, rate = asyncio.run(visit())
    assert 0 < open_["round_trip_s"] < 1
    assert closed == {"error": "Connection refused"}
    assert rate > 1e6


def test_what_an_agent_wrote_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (error,) = _ask(session.local_argv(), {"do": "write", "path": str(path), "text": "a"})
    assert error is None
    assert not path.exists()


def test_a_question_that_cannot_be_answered_is_told() -> None:
    with pytest.raises(Lost, match="KeyError"):
        _ask(session.local_argv(), {"do": "dance"})


def _open(argv: list[str], timeout_s: float = 10) -> Login:
    return asyncio.run(session.open_session("node2", argv, timeout_s))


def test_what_is_printed_before_is_noise_and_does_no_harm() -> None:
    async def visit() -> Login:
        words = 'printf \'Welcome!\\nno end\'; exec "$0" "$@"'
        login = await session.open_session("a", ["sh", "-c", words, *session.local_argv()], 20)
        assert login.session is not None
        await login.session.close()
        return login

    assert asyncio.run(visit()).reply.stdout == b"Welcome!\nno end\n"


def test_who_ends_before_the_hello_is_told_with_exit_code_and_last_words() -> None:
    login = _open(["sh", "-c", "echo said; echo cried >&2; exit 7"])
    assert login.session is None
    assert login.has_python
    reply = login.reply
    assert (reply.exit_code, reply.stdout, reply.stderr) == (7, b"said\n", b"cried\n")


def test_who_says_nothing_is_killed_in_time() -> None:
    login = _open(["sh", "-c", "sleep 600 & wait"], 0.5)
    assert login.session is None
    assert login.reply.exit_code is None
    assert login.reply.time_s < 2


def test_the_line_for_hosts_finds_a_python_or_says_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    line = session.remote_argv(Ssh(), "node2")[-1]
    ended = subprocess.run(
        ["/bin/sh", "-c", line.replace(sys.executable, "/no/python")],
        env={"PATH": str(tmp_path)}, capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert ended.stderr == ""
    assert json.loads(ended.stdout.split("doubletime-doctor:")[1]) == {"hello": None}


# -- outputs of machines that are not here ----------------------------------------------------------

_MOUNTS = """\
sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0
/dev/nvme0n1p2 / ext4 rw,relatime,errors=remount-ro 0 0
storage:/export/home /home nfs4 rw,relatime,vers=4.2,hard,proto=tcp,timeo=600,addr=10.0.0.9 0 0
storage:/export/my\\040data /data/my\\040data nfs rw,vers=3,actimeo=1 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind", "mount"),
    [
        ("/srv/job", "ext4", "/"),
        ("/home/ann/job", "nfs4", "/home"),
        ("/homestead", "ext4", "/"),
        ("/data/my data/set", "nfs", "/data/my data"),
    ],
)
def test_the_file_system_of_a_folder(path: str, kind: str, mount: str) -> None:
    found = probe._mount(path, _MOUNTS)
    assert (found["type"], found["mount"]) == (kind, mount)


def test_ports_of_rdma_devices(tmp_path: Path) -> None:
    for device, state in (("mlx5_1", "1: DOWN"), ("mlx5_0", "4: ACTIVE")):
        port = tmp_path / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "phys_state").write_text("5: LinkUp\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    first, second = probe._rdma(str(tmp_path))
    assert first == {
        "device": "mlx5_0", "port": "1", "state": "4: ACTIVE", "phys_state": "5: LinkUp",
        "link_layer": "", "rate": "200 Gb/sec (4X HDR)",
    }  # fmt: skip
    assert (second["device"], second["state"]) == ("mlx5_1", "1: DOWN")


def test_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe._gpus() is None
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\necho "NVIDIA H200, 570.86.15, 143771 MiB"\n')
    smi.chmod(0o755)
    assert probe._gpus() == "NVIDIA H200, 570.86.15, 143771 MiB\n"


def test_a_library_that_crashes_does_no_harm() -> None:
    crash = probe._in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert "ended the process" in crash["error"]
    assert probe._in_child(lambda: "5")["text"] == "5"
