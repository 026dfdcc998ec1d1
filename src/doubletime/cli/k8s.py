"""`doubletime k8s`: write the manifest of an MPIJob, for Kubeflow's MPI operator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from doubletime.cli.batch import RULE
from doubletime.cli.run import variables
from doubletime.cli.slurm import job_name, write
from doubletime.cli.where import BackendOption, EnvOption, MaxRestartsOption, MinHostsOption
from doubletime.cluster import batch_system, kubernetes
from doubletime.errors import LaunchError

HELP = (
    "Write the manifest of an MPIJob (Kubeflow's MPI operator, v2beta1) for kubectl apply.\n\n"
    "The program is a script within the image, -m and a module, or any executable. "
    f"{RULE} "
    "The image needs Python with doubletime, the MPI, an ssh client and sshd."
)


def k8s(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM [ARGS]", help="What each rank runs.")
    ],
    image: Annotated[str, typer.Option(metavar="IMAGE", help="What the hosts run.")],
    nodes: Annotated[int, typer.Option("-N", "--nodes", min=1, help="How many hosts (pods).")] = 1,
    per_host: Annotated[
        int | None,
        typer.Option("--per-host", min=1, help="Ranks on each.  [default: one per GPU, or one]"),
    ] = None,
    mpi: Annotated[str, typer.Option(metavar="mpich|openmpi|intel", help="The image's.")] = "mpich",
    cpus: Annotated[str | None, typer.Option(metavar="N", help="Cores of each host.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="64Gi", help="Of each host.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of each host.")] = None,
    shm: Annotated[str, typer.Option(metavar="2Gi", help="How large /dev/shm is.")] = "2Gi",
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="CLAIM:FOLDER", help="A volume on every host; may be repeated."),
    ] = None,
    folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where it starts.  [default: the image's]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the job.  [default: the program's]")] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Of Kubernetes.")] = None,
    backend: BackendOption = None,
    env: EnvOption = None,
    max_restarts: MaxRestartsOption = 0,
    min_hosts: MinHostsOption = 1,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the manifest there.")
    ] = None,
) -> None:
    """Write the manifest of an MPIJob."""
    job = kubernetes.MPIJob(
        name=name or job_name(program).lower().replace("_", "-"),
        image=image,
        nodes=nodes,
        per_host=per_host,
        mpi=mpi,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        shm=shm,
        namespace=namespace,
        folder=folder,
        volumes=_volumes(volume or []),
    )
    launch = batch_system.Launch(program, backend, variables(env or []), max_restarts, min_hosts)
    text = kubernetes.manifest(job, launch)
    write(text, save)
    if save is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"doubletime: {save} is written; start it: kubectl apply -f {save}", err=True)


def _volumes(pairs: list[str]) -> dict[str, str]:
    """Claims by the folders where they are mounted.

    Raises:
        LaunchError: if one is no CLAIM:FOLDER.
    """
    found = {}
    for pair in pairs:
        claim, sign, path = pair.partition(":")
        if not (claim and sign and path.startswith("/")):
            raise LaunchError(f"--volume {pair!r} is no CLAIM:FOLDER", "--volume data:/data")
        found[path] = claim
    return found
