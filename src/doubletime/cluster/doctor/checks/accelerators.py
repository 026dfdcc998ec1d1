"""GPUs that are unlike, and RDMA that is there and not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from doubletime.cluster.doctor.facts import HostFacts, Survey
from doubletime.cluster.doctor.finding import Finding, Severity

_NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
_TCP_ONLY = ("tcp", "sockets", "tcp;ofi_rxm")


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it."""

    model: str
    driver: str
    memory: str


def gpus(survey: Survey) -> Iterator[Finding]:
    """Hosts whose GPUs, driver or NCCL differ from what most have."""
    found = {facts.host: parse_gpus(facts.record["gpus"]) for facts in survey.hosts}
    for facts in survey.hosts:
        text = facts.record["gpus"]
        if text is not None and not found[facts.host]:
            first = text.strip().splitlines()[0] if text.strip() else "nothing"
            yield Finding(
                "gpu-driver",
                f"nvidia-smi on {facts.host} says: {first[:120]}",
                facts.host,
                "ranks there find no GPU, and train on the CPU or end",
                f"on {facts.host}: sudo modprobe nvidia; dmesg | grep -i nvidia   (after an update "
                "of the driver: reboot)",
            )
    yield from _gpus_unlike(found)
    versions = {facts.host: version for facts in survey.hosts if (version := _nccl(facts))}
    yield from _unlike(
        "nccl-differs",
        "NCCL",
        versions,
        Severity.ERROR,
        "ranks with two versions of NCCL hang or fail when they begin to communicate",
        "pip install the same torch on all hosts",
    )


def rdma(survey: Survey) -> Iterator[Finding]:
    """Hosts whose RDMA ports are not active, or that cannot or may not use them."""
    have = [facts for facts in survey.hosts if facts.record["rdma"]]
    for facts in survey.hosts:
        ports = facts.record["rdma"]
        if not ports:
            if have:
                yield Finding(
                    "rdma-missing",
                    f"{facts.host} has no RDMA device; {have[0].host} has",
                    facts.host,
                    "jobs that include it use TCP between all its pairs, many times slower",
                    f"on {facts.host}: lspci | grep -i -e mellanox -e infiniband; "
                    "sudo modprobe mlx5_ib",
                    Severity.WARNING,
                )
            continue
        active = [port for port in ports if port["state"].endswith("ACTIVE")]
        if not active:
            yield _inactive(facts, ports[0])
            continue
        error = (facts.record["verbs"] or {}).get("error")
        if error is not None or not (facts.record["verbs"] or {}).get("text"):
            yield Finding(
                "rdma-no-verbs",
                f"programs on {facts.host} cannot use {active[0]['device']}: "
                f"{error or 'there is no /dev/infiniband/uverbs0'}",
                facts.host,
                "MPI and NCCL fall back to TCP, many times slower",
                f"on {facts.host}: sudo apt-get install libibverbs1 ibverbs-providers && "
                "sudo modprobe ib_uverbs",
                Severity.WARNING,
            )
        for name, value in forbidding(facts.record["variables"]):
            yield Finding(
                "rdma-not-used",
                f"{facts.host} has RDMA ({active[0]['device']}, {active[0]['rate']}), and "
                f"{name}={value} in its environment forbids it",
                facts.host,
                "messages take TCP, many times slower",
                f"unset {name}   (on {facts.host}: grep -rn {name} ~/.bashrc ~/.profile "
                "/etc/environment /etc/profile.d)",
                Severity.WARNING,
            )


def parse_gpus(text: str | None) -> tuple[Gpu, ...]:
    """GPUs from `nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader`."""
    found = []
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[2].endswith("MiB"):
            found.append(Gpu(*cells))
    return tuple(found)


def forbidding(variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that keep MPI or NCCL from RDMA."""
    found = []
    for name, value in sorted(variables.items()):
        words = value.lower().split(",")
        if (
            (name == "FI_PROVIDER" and value.lower() in _TCP_ONLY)
            or (name == "NCCL_IB_DISABLE" and value == "1")
            or (name == "NCCL_NET" and value.lower() == "socket")
            or (name == "UCX_TLS" and "tcp" in words and not set(words) & {"all", "rc", "ud", "ib"})
            or (name == "OMPI_MCA_btl" and "tcp" in words)
            or (name == "OMPI_MCA_pml" and words == ["ob1"])
        ):
            found.append((name, value))
    return found


def _gpus_unlike(found: Mapping[str, Sequence[Gpu]]) -> Iterator[Finding]:
    have = {host: rows for host, rows in found.items() if rows}
    yield from _unlike(
        "gpu-count",
        "GPUs",
        {host: str(len(rows)) for host, rows in found.items()} if have else {},
        Severity.WARNING,
        "ranks without a GPU of their own share one, or the hosts' shares of work are unequal",
        "give each host as many slots as it has GPUs",
    )
    yield from _unlike(
        "gpu-model",
        "GPUs",
        {host: _listed(row.model for row in rows) for host, rows in have.items()},
        Severity.WARNING,
        "training in step goes at the pace of the slowest GPU",
        "train on hosts of one model",
    )
    yield from _unlike(
        "gpu-driver-differs",
        "NVIDIA driver",
        {host: _listed(row.driver for row in rows) for host, rows in have.items()},
        Severity.WARNING,
        "kernels and NCCL may behave differently from host to host",
        "install the same driver on all hosts",
    )


def _unlike(
    kind: str, noun: str, values: Mapping[str, str], severity: Severity, why: str, remedy: str
) -> Iterator[Finding]:
    """Hosts whose value is not what most have, the first of the most common ones."""
    if len(set(values.values())) < 2:
        return
    usual = Counter(values.values()).most_common(1)[0][0]
    first = next(host for host, value in values.items() if value == usual)
    for host, value in values.items():
        if value != usual:
            yield Finding(
                kind, f"{noun} on {host}: {value}; on {first}: {usual}", host, why, remedy, severity
            )


def _inactive(facts: HostFacts, port: Mapping[str, str]) -> Finding:
    physical = port["phys_state"].partition(":")[2].strip() or port["phys_state"]
    if physical == "LinkUp":
        remedy = "start a subnet manager on one host: sudo systemctl enable --now opensm"
    elif physical == "Disabled":
        remedy = f"on {facts.host}: sudo ibportstate -D 0 {port['port']} enable"
    else:
        remedy = f"plug in the cable of {facts.host}, then on it: ibstat {port['device']}"
    return Finding(
        "rdma-inactive",
        f"{port['device']} port {port['port']} on {facts.host} is not active: "
        f"{port['state'].partition(':')[2].strip()}, {physical}",
        facts.host,
        "MPI and NCCL take TCP, many times slower, or wait for the port",
        remedy,
        Severity.WARNING,
    )


def _nccl(facts: HostFacts) -> str | None:
    return next((version for name in _NCCL if (version := facts.packages.get(name))), None)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words)))
