"""The virtual cluster as a command: `PYTHONPATH=tests python -m vcluster up 4`, as root."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from vcluster import jobs, measure
from vcluster.cluster import VirtualCluster

app = typer.Typer(
    help="Several hosts on this machine, with networks, links and sshd of their own. Needs root.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_PASS_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}

Folder = Annotated[
    Path,
    typer.Option(envvar="VCLUSTER", help="The cluster's files; another folder, another cluster."),
]
DEFAULT = Path(tempfile.gettempdir(), "doubletime-vcluster")
Hosts = Annotated[list[str] | None, typer.Argument(help="Names of hosts; none is all.")]


@app.command()
def up(hosts: int, folder: Folder = DEFAULT) -> None:
    """Bring up so many hosts: node1, node2, …"""
    cluster = VirtualCluster(hosts, folder, outlives_us=True)
    cluster.up()
    for host in cluster.state.hosts:
        print(host.name, host.address)
    print(f"ssh: {cluster.ssh}")


@app.command()
def down(folder: Folder = DEFAULT) -> None:
    """Remove the cluster whole."""
    VirtualCluster.at(folder).down()


@app.command()
def hosts(folder: Folder = DEFAULT) -> None:
    """Show each host, its address, and whether it runs."""
    for host in VirtualCluster.at(folder).state.hosts:
        print(host.name, host.address, "up" if host.machine.is_running else "killed")


@app.command("exec", context_settings=_PASS_ON)
def execute(context: typer.Context, host: str, folder: Folder = DEFAULT) -> None:
    """Run a command on a host: `exec node1 CMD …`."""
    words = [*VirtualCluster.at(folder).enter(host), *(context.args or ["bash"])]
    os.execvp(words[0], words)


@app.command(context_settings=_PASS_ON)
def mpiexec(
    context: typer.Context,
    program: Path,
    ranks: Annotated[int, typer.Option("-n", help="Ranks in all.")],
    ranks_per_host: Annotated[int, typer.Option("--per-host")] = 1,
    mpi: Annotated[str, typer.Option(help="mpich, openmpi or intel.")] = "mpich",
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 600,
    folder: Folder = DEFAULT,
) -> None:
    """Run a script on ranks over the hosts: `mpiexec -n 4 script.py …`."""
    done = jobs.mpiexec(
        VirtualCluster.at(folder), mpi, program, ranks, ranks_per_host,
        args=context.args, timeout=timeout,
    )  # fmt: skip
    print(done.stdout, end="")
    typer.echo(done.stderr, err=True, nl=False)
    raise typer.Exit(done.exit_code)


@app.command()
def shape(rate: str, hosts: Hosts = None, folder: Folder = DEFAULT) -> None:
    """Limit what hosts send: `shape 1gbit`, `shape off`."""
    VirtualCluster.at(folder).shape(rate, hosts)


@app.command()
def wan(rate: str, delay: str, folder: Folder = DEFAULT) -> None:
    """Give all links a rate and a one-way delay: `wan 1gbit 1ms`."""
    VirtualCluster.at(folder).wan(rate, delay)


@app.command()
def lan(folder: Folder = DEFAULT) -> None:
    """Give all links back the machine's own speed."""
    VirtualCluster.at(folder).lan()


@app.command()
def cut(host: str, folder: Folder = DEFAULT) -> None:
    """Drop every packet from and to a host."""
    VirtualCluster.at(folder).cut(host)


@app.command()
def heal(host: str, folder: Folder = DEFAULT) -> None:
    """Let the packets of a host pass again."""
    VirtualCluster.at(folder).heal(host)


@app.command()
def hide(host: str, path: Path, folder: Folder = DEFAULT) -> None:
    """Put an empty folder in a folder's place, on one host."""
    VirtualCluster.at(folder).hide(host, path)


@app.command()
def reveal(host: str, path: Path, folder: Folder = DEFAULT) -> None:
    """Undo `hide`."""
    VirtualCluster.at(folder).reveal(host, path)


@app.command()
def freeze(host: str, folder: Folder = DEFAULT) -> None:
    """Stop every process of a host."""
    VirtualCluster.at(folder).freeze(host)


@app.command()
def thaw(host: str, folder: Folder = DEFAULT) -> None:
    """Let a frozen host go on."""
    VirtualCluster.at(folder).thaw(host)


@app.command()
def kill(host: str, folder: Folder = DEFAULT) -> None:
    """Kill every process of a host, its sshd too; it does not come back."""
    VirtualCluster.at(folder).kill(host)


@app.command("measure")
def measure_links(nbytes: int = 64 << 20, folder: Folder = DEFAULT) -> None:
    """Show what a bare TCP connection from each host to the next gets, alone and all at once."""
    cluster = VirtualCluster.at(folder)
    following = zip(cluster.hosts, cluster.hosts[1:] + cluster.hosts[:1], strict=True)
    alone = {source: measure.link(cluster, source, target, nbytes) for source, target in following}
    for source, together in measure.all_at_once(cluster, nbytes).items():
        link = alone[source]
        print(
            f"{source}: {link.bytes_per_s * 8e-6:.1f} Mbit/s, "
            f"round trip {link.round_trip_s * 1e6:.0f} us; "
            f"all at once {together.bytes_per_s * 8e-6:.1f} Mbit/s"
        )


if __name__ == "__main__":
    app()
