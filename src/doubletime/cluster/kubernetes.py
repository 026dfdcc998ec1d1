"""A job for Kubernetes as a manifest of Kubeflow's MPI operator (MPIJob, v2beta1): pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from doubletime.cluster.batch_system import Launch
from doubletime.errors import LaunchError

IMPLEMENTATIONS = {"mpich": "MPICH", "openmpi": "OpenMPI", "intel": "Intel"}
_HOSTFILE = "/etc/mpi/hostfile"  # where the operator puts it
# Pods are new each time, and so are their host keys.
_SSH = ("ssh", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
_NAME = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 63  # of a host, which ends in -worker-N
_QUANTITY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[EPTGMk]i?|Ki|m)?")
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z_/][\w./:-]*", re.ASCII)
_NOT_TEXT = re.compile(r"(?i)null|true|false|yes|no|on|off|y|n|~|\.(?:inf|nan)|\.+|.*:")


@dataclass(frozen=True)
class MPIJob:
    """What is asked of Kubernetes.

    Attributes:
        name: of the job, its hosts are called after it.
        image: with Python, doubletime, the program, sshd and the MPI.
        nodes: how many hosts (worker pods).
        per_host: ranks on each; None for one per GPU, or one.
        mpi: a key of `IMPLEMENTATIONS`: the image's.
        cpus, memory, gpus: of each host; None leaves them out.
        shm: how large /dev/shm is: the 64 MiB of a pod are too few for MPI and for DataLoader.
        namespace: None for kubectl's own.
        folder: where the program starts; None for the image's.
        volumes: claim by the folder where it is mounted, on every host: data, checkpoints.
    """

    name: str
    image: str
    nodes: int
    per_host: int | None = None
    mpi: str = "mpich"
    cpus: str | None = None
    memory: str | None = None
    gpus: int | None = None
    shm: str = "2Gi"
    namespace: str | None = None
    folder: str | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)


def manifest(job: MPIJob, launch: Launch) -> str:
    """The manifest as YAML.

    Raises:
        LaunchError: if something cannot be asked of Kubernetes so.
    """
    _check(job)
    line = ["doubletime", "run", "--hostfile", _HOSTFILE, "--ssh-command", shlex.join(_SSH)]
    launcher = {"name": "launcher", "image": job.image, "command": [*line, *launch.words()]}
    worker: dict[str, object] = {"name": "worker", "image": job.image}
    worker["command"] = ["/usr/sbin/sshd", "-De"]
    limits = {"cpu": job.cpus, "memory": job.memory, "nvidia.com/gpu": job.gpus}
    if any(limits.values()):
        worker["resources"] = {"limits": {k: v for k, v in limits.items() if v is not None}}
    shared = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}}
    spec = {
        "slotsPerWorker": job.per_host or job.gpus or 1,
        "mpiImplementation": IMPLEMENTATIONS[job.mpi],
        "launcherCreationPolicy": "WaitForWorkersReady",
        "sshAuthMountPath": "/root/.ssh",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
        "mpiReplicaSpecs": {
            "Launcher": _replicas(job, 1, "Never", launcher, []),
            "Worker": _replicas(job, job.nodes, "OnFailure", worker, [shared]),
        },
    }
    metadata = {"name": job.name}
    if job.namespace is not None:
        metadata["namespace"] = job.namespace
    whole = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": spec,
    }
    return "\n".join([*_yaml(whole), ""])


def _replicas(
    job: MPIJob,
    count: int,
    restart: str,
    container: Mapping[str, object],
    volumes: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    all_volumes = list(volumes)
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}] if volumes else []
    for number, (path, claim) in enumerate(job.volumes.items(), 1):
        all_volumes.append(
            {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
        )
        mounts.append({"name": f"volume-{number}", "mountPath": path})
    here = dict(container)
    if job.folder is not None:
        here["workingDir"] = job.folder
    if mounts:
        here["volumeMounts"] = mounts
    pod: dict[str, object] = {"containers": [here]}
    if all_volumes:
        pod["volumes"] = all_volumes
    return {"replicas": count, "restartPolicy": restart, "template": {"spec": pod}}


def _check(job: MPIJob) -> None:
    if job.nodes < 1:
        raise LaunchError(f"-N {job.nodes}: no hosts to run on", "-N 2")
    if job.mpi not in IMPLEMENTATIONS:
        raise LaunchError(
            f"--mpi {job.mpi!r} is none of {', '.join(IMPLEMENTATIONS)}", "--mpi mpich"
        )
    if not _IMAGE.fullmatch(job.image):
        raise LaunchError(
            f"--image {job.image!r} is the name of no image", "--image registry.example.org/train:1"
        )
    last = f"{job.name}-worker-{job.nodes - 1}"
    if not _NAME.fullmatch(job.name) or len(last) > _LONGEST_NAME:
        raise LaunchError(
            f"--name {job.name!r}: hosts are called after it, as {last}: lower-case letters, digits "
            f"and dashes, a letter first, at most {_LONGEST_NAME} in all",
            "--name mnist",
        )
    for option, value in (("--cpus", job.cpus), ("--memory", job.memory), ("--shm", job.shm)):
        if value is not None and not _QUANTITY.fullmatch(value):
            raise LaunchError(
                f"{option} {value!r} is no quantity that Kubernetes knows", f"{option} 8Gi"
            )


def _yaml(value: object) -> list[str]:
    """The lines of a value in YAML's block style."""
    if isinstance(value, Mapping):
        lines = []
        for name, part in value.items():
            if isinstance(part, Mapping | list):
                nested = _yaml(part)
                indent = "  " if isinstance(part, Mapping) else ""
                lines += [f"{_scalar(name)}:", *(indent + line for line in nested)]
            else:
                lines.append(f"{_scalar(name)}: {_scalar(part)}")
        return lines
    if isinstance(value, list):
        lines = []
        for part in value:
            first, *rest = _yaml(part)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _scalar(value: object) -> str:
    """A text without quotes where it can be taken for nothing else; JSON's form is YAML's too."""
    text = str(value)
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text)
    return text if is_plain else json.dumps(value, ensure_ascii=False)
