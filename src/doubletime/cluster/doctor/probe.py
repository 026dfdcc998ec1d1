"""The facts of one host, gathered on it: standard library only, Python 3.6 or later, nothing installed.

This file's text is sent to hosts and run there, where there may be no doubletime: it imports nothing
of it. What cannot be found out is left out or None; judging is left to `checks`.
"""

import importlib.util
import json
import os
import pwd
import re
import resource
import signal
import socket
import subprocess
import sys
import time

# Each import counts, as every host makes it: what few need is imported where it is needed.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_PACKAGES = ("torch", "mpi4py", "doubletime", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_VARIABLES = re.compile(
    r"(?:FI|UCX|NCCL|GLOO|OMPI|PRTE|I_MPI|MPICH|MPIR|MV2|MVP|HYDRA|OMP|DOUBLETIME)_|"
    r"(?:CUDA_VISIBLE_DEVICES|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME)$"
)
_COMMAND_S = 10  # what a program that is asked for its version may take
_WINDOW_S = 0.5  # over which processes' use of the cores is seen
_BUSY = 0.1  # cores; a process below is not told of
_ALWAYS = 0.9  # of the window


def facts(question: "dict[str, Any]") -> "dict[str, Any]":
    """All about this host.

    Args:
        question: `names`: of all hosts; `folder`: where the job runs; `script`: its file or None;
            `checkpoints`: the folder where they go.

    Returns:
        Plain data, as `doubletime.cluster.doctor.facts` reads it.
    """
    begin_s, before, installed = time.monotonic(), _processes(), _installed()
    found: dict[str, Any] = {
        "user": _attempt(lambda: pwd.getpwuid(os.getuid()).pw_name) or str(os.getuid()),
        "uid": os.getuid(),
        "hostname": socket.gethostname(),
        "system": " ".join(os.uname()[::2]),
        "python": {
            "executable": sys.executable,
            "prefix": sys.prefix,
            "version": ".".join(map(str, sys.version_info[:3])),
        },
        "packages": {name: _package(name, installed) for name in _PACKAGES},
        "mpiexec": _mpiexec(),
        "library": _in_child(_library),
        "own_addresses": _addresses(socket.gethostname()),
        "names": {name: _addresses(name) for name in question["names"]},
        "interfaces": _interfaces(),
        "shm": _space("/dev/shm"),
        "memlock_nbytes": _memlock(),
        "cores": _cores(),
        "gpus": _gpus(),
        "rdma": _rdma(),
        "verbs": _in_child(_verbs) if os.path.isdir("/sys/class/infiniband") else None,
        "folder": _folder(question["folder"]),
        "checkpoints": _folder(question["checkpoints"], is_tried=True),
        "script": _digest(question.get("script")),
        "variables": {k: v for k, v in os.environ.items() if _VARIABLES.match(k)},
    }
    found["routes"] = {
        name: _route([address for address in addresses if not address.startswith("127.")])
        for name, addresses in found["names"].items()
    }
    rest_s = _WINDOW_S - (time.monotonic() - begin_s)
    if rest_s > 0:
        time.sleep(rest_s)
    found["busy"] = _busy(before, _processes(), time.monotonic() - begin_s)
    return found


def _attempt(ask: "Callable[..., Any]", *arguments: "Any") -> "Any":
    """What `ask` answers, or None where this host cannot."""
    try:
        return ask(*arguments)
    except (OSError, ValueError, KeyError, IndexError, ImportError):
        return None


def _run(words: "Sequence[str]", timeout_s: float = _COMMAND_S) -> "str | None":
    """What a program writes, errors too; None where it cannot be run."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace")


def _which(name: str) -> "str | None":
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read().strip()


def _in_child(ask: "Callable[[], str]") -> "dict[str, Any]":
    """What a function answers in a fork, which may crash or hang without harm to us."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer: dict[str, Any] = {}
        try:
            signal.alarm(_COMMAND_S)
            os.close(read)
            sys.stdout = sys.stderr
            answer = {"text": ask()}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if not said:
        return {"error": f"loading it ended the process (status {status})"}
    found: dict[str, Any] = json.loads(said.decode())
    return found


def _installed() -> "list[str]":
    """Names and versions of what pip, apt or conda have installed: `torch-2.13.0`."""
    found = []
    for folder in sys.path:
        for entry in _attempt(os.listdir, folder or ".") or ():
            stem, ending = os.path.splitext(entry)
            if ending in (".dist-info", ".egg-info"):
                found.append(stem)
    return found


def _package(name: str, installed: "list[str]") -> "str | None":
    """The version of an installed package that can be imported; None where it is not there."""
    module = name.split("-")[0]  # nvidia-nccl-cu12 lies within the namespace nvidia
    spec = _attempt(importlib.util.find_spec, module)
    if spec is None or (spec.origin is None and module == name):
        return None  # a folder that is there but empty is a namespace, without an origin
    wanted = name.replace("-", "_").lower() + "-"
    for stem in installed:
        if stem.lower().startswith(wanted):
            return stem[len(wanted) :].split("-")[0]
    return "unknown" if module == name else None


def _mpiexec() -> "dict[str, Any] | None":
    """The `mpiexec` beside this Python, else the one in PATH, and what it says it is."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    for path in (beside, _which("mpiexec"), _which("mpirun")):
        if path and os.access(path, os.X_OK) and os.path.isfile(path):
            return {"path": path, "said": _run([path, "--version"])}
    return None


def _library() -> str:
    # By name: doubletime itself, which this is no part of here, imports it in one place only.
    package = importlib.import_module("mpi4py")
    package.rc.initialize = False
    package.rc.finalize = False
    return str(importlib.import_module("mpi4py.MPI").Get_library_version())


def _addresses(name: str) -> "list[str]":
    found = _attempt(socket.getaddrinfo, name, 22, 0, socket.SOCK_STREAM) or []
    return list(dict.fromkeys(str(row[4][0]) for row in found))


def _route(addresses: "Sequence[str]") -> "str | None":
    """Our own address on the way to a host; None where no route leads there."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))  # sends nothing; the kernel looks up the route
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None


def _interfaces() -> "list[dict[str, Any]]":
    """Interfaces that are up: name, IPv4 address, its network's width, speed in Mbit/s."""
    import fcntl
    import struct

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():

            def ask(request: int, name: str = name) -> bytes:
                return fcntl.ioctl(asked, request, struct.pack("256s", name.encode()[:15]))

            flags = _attempt(ask, 0x8913)  # SIOCGIFFLAGS
            address = _attempt(ask, 0x8915)  # SIOCGIFADDR
            netmask = _attempt(ask, 0x891B)  # SIOCGIFNETMASK
            if not flags or not struct.unpack("<H", flags[16:18])[0] & 1 or not address:
                continue
            width = bin(struct.unpack("!I", netmask[20:24])[0]).count("1") if netmask else 32
            path = f"/sys/class/net/{name}/"
            found.append(
                {
                    "name": name,
                    "address": socket.inet_ntoa(address[20:24]),
                    "width": width,
                    "mbit_per_s": _attempt(lambda p=path: int(_read(p + "speed"))),
                    "mtu": _attempt(lambda p=path: int(_read(p + "mtu"))),
                    "is_virtual": os.path.exists(path + "bridge"),
                }
            )
    return found


def _space(path: str) -> "dict[str, int] | None":
    found = _attempt(os.statvfs, path)
    if found is None:
        return None
    return {
        "total_nbytes": found.f_blocks * found.f_frsize,
        "free_nbytes": found.f_bavail * found.f_frsize,
        "free_files": found.f_favail if found.f_files else -1,
    }


def _memlock() -> "int | None":
    """The limit on locked memory in bytes; None for no limit."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _cores() -> "dict[str, Any]":
    quota = None
    text = _attempt(_read, "/sys/fs/cgroup/cpu.max")
    if text and not text.startswith("max"):
        quota = int(text.split()[0]) / int(text.split()[1])
    v1 = "/sys/fs/cgroup/cpu/cpu.cfs_"
    quota_us = _attempt(lambda: int(_read(v1 + "quota_us")))
    if quota_us and quota_us > 0:
        quota = quota_us / int(_read(v1 + "period_us"))
    return {"all": os.cpu_count() or 1, "own": len(os.sched_getaffinity(0)), "quota": quota}


def _processes() -> "dict[int, list[Any]]":
    """Each process that we see: [name, start, parent, CPU ticks, what it wanted in ns or None]."""
    found = {}
    for entry in os.listdir("/proc"):
        text = _attempt(_read, f"/proc/{entry}/stat") if entry.isdigit() else None
        if text:
            name, _, rest = text[text.index("(") + 1 :].rpartition(")")
            words = rest.split()
            wanted = None
            if words[0] == "R":  # its time on a core and its time of waiting for one
                wanted = _attempt(lambda e=entry: sum(map(int, _schedule(e))))
            ticks = int(words[11]) + int(words[12])
            found[int(entry)] = [name, words[19], int(words[1]), ticks, wanted]
    return found


def _schedule(pid: str) -> "list[str]":
    return _read(f"/proc/{pid}/schedstat").split()[:2]


def _busy(
    before: "dict[int, list[Any]]", after: "dict[int, list[Any]]", window_s: float
) -> "list[dict[str, Any]]":
    """Processes that kept cores busy between two looks, our own line of parents left out."""
    own = set()
    pid = os.getpid()
    while pid in after and pid not in own:
        own.add(pid)
        pid = after[pid][2]
    found = []
    for pid, (name, start, parent, ticks, wanted) in after.items():
        is_login = parent in own and name.startswith("ssh")
        if pid in own or is_login or pid not in before or before[pid][1] != start:
            continue
        cores = (ticks - before[pid][3]) / os.sysconf("SC_CLK_TCK") / window_s
        if wanted is not None and before[pid][4] is not None:
            # Who could run all the time wants a core, whatever others, and we, leave of it now.
            share = (wanted - before[pid][4]) * 1e-9 / window_s
            cores = max(cores, 1.0 if share > _ALWAYS else 0.0)
        if cores >= _BUSY:
            path = f"/proc/{pid}"
            line = _attempt(_read, path + "/cmdline") or ""
            owner = _attempt(lambda p=path: pwd.getpwuid(os.stat(p).st_uid).pw_name)
            line = line.replace("\0", " ").strip()[:80]
            found.append({"pid": pid, "user": owner, "command": line or name, "cores": cores})
    return sorted(found, key=lambda each: -each["cores"])


def _gpus() -> "str | None":
    """What nvidia-smi tells; None where there is none."""
    if not _which("nvidia-smi"):
        return None
    query = "--query-gpu=name,driver_version,memory.total"
    return _run(["nvidia-smi", query, "--format=csv,noheader"])


def _rdma(root: str = "/sys/class/infiniband") -> "list[dict[str, str]]":
    """Ports of RDMA devices: device, port, state, physical state, link layer, rate."""
    found = []
    for device in sorted(_attempt(os.listdir, root) or ()):
        ports = os.path.join(root, device, "ports")
        for port in sorted(_attempt(os.listdir, ports) or ()):
            row = {"device": device, "port": port}
            for name in ("state", "phys_state", "link_layer", "rate"):
                row[name] = _attempt(_read, os.path.join(ports, port, name)) or ""
            found.append(row)
    return found


def _verbs() -> str:
    """Whether programs can use RDMA devices: the library, and the device files."""
    import ctypes

    ctypes.CDLL("libibverbs.so.1")
    return " ".join(sorted(name for name in os.listdir("/dev/infiniband") if "uverbs" in name))


def _folder(path: str, is_tried: bool = False) -> "dict[str, Any]":
    found: dict[str, Any] = {"path": path, "exists": os.path.isdir(path)}
    if not found["exists"]:
        return found
    found.update(_mount(path, _attempt(_read, "/proc/self/mounts") or ""))
    found["space"] = _space(path)
    if is_tried:
        found["error"] = _try_to_write(path)
    return found


def _try_to_write(path: str) -> "str | None":
    """Why a file of 1 MiB cannot be written into a folder; None where it can."""
    name = os.path.join(path, f".doubletime-doctor-{socket.gethostname()}-{os.getpid()}")
    try:
        try:
            with open(name, "wb") as file:
                file.write(os.urandom(1 << 20))
                file.flush()
                os.fsync(file.fileno())
        finally:
            if os.path.exists(name):
                os.unlink(name)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _mount(path: str, mounts: str) -> "dict[str, Any]":
    """The file system that a folder lies on: type, source, options; from /proc/self/mounts."""
    real, best = os.path.realpath(path), ""
    found: dict[str, Any] = {}
    for line in mounts.splitlines():
        source, point, kind, options = line.split(" ")[:4]
        point = point.replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best = point
            found = {"source": source, "mount": point, "type": kind, "options": options}
    return found


def _digest(path: "str | None") -> "dict[str, Any] | None":
    if path is None:
        return None
    import hashlib

    try:
        with open(path, "rb") as file:
            return {"path": path, "sha256": hashlib.sha256(file.read()).hexdigest()}
    except OSError as error:
        return {"path": path, "error": error.strerror}
