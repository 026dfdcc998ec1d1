"""The network of a cluster: every host one interface eth0, all on one switch; rates, delays, cuts."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vcluster.namespaces import Machine
from vcluster.requirements import program

_BRIDGE = "switch"
_SUBNET = "10.77.0"
_FIRST_ADDRESS = 11
# What a rate lets through at once: under it a link looks faster than it is. The kernel's largest packet
# has to fit.
_BURST = "70kb"
_LONGEST_QUEUE = "50ms"
_WAN_QUEUE_NBYTES = 30_000_000
_WAN_SOURCE = Path(__file__).with_name("wan.c")

_RATE = re.compile(r"([0-9.]+)(k|m|g)bit")
_DELAY = re.compile(r"([0-9.]+)(us|ms)")
_BYTES_PER_S = {"k": 125.0, "m": 125e3, "g": 125e6}
_MICROSECONDS = {"us": 1.0, "ms": 1e3}


@dataclass(frozen=True)
class Port:
    """Where a host meets the network.

    Attributes:
        name: of the host.
        index: among the hosts, from 0.
        machine: the host's namespaces.
    """

    name: str
    index: int
    machine: Machine

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return address(self.index)

    @property
    def mac(self) -> str:
        """Its Ethernet address behind the switch with a delay."""
        return f"02:00:00:00:00:{self.index + 1:02x}"


def address(index: int) -> str:
    """The IPv4 address of the host with this index, from 0."""
    return f"{_SUBNET}.{index + _FIRST_ADDRESS}"


def make_bridge(switch: Machine) -> None:
    """Make the kernel's switch that hosts are plugged into."""
    _ip(switch, [f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up"])


def plug(switch: Machine, ports: Sequence[Port]) -> None:
    """Give each host an interface eth0 on the kernel's switch, as fast as the machine is."""
    lines = []
    for port in ports:
        lines += [
            f"link add {port.name} type veth peer name eth0 netns {port.machine.pid}",
            f"link set {port.name} master {_BRIDGE} up",
        ]
    _ip(switch, lines)
    for port in ports:
        _ip(port.machine, _interface(port))


def unplug(ports: Sequence[Port]) -> None:
    """Take eth0 away from each host that has it."""
    for port in ports:
        if any(link["ifname"] == "eth0" for link in _query(port, "ip", "-j", "link", "show")):
            _ip(port.machine, ["link del eth0"])


def shape(switch: Machine, port: Port, rate: str) -> None:
    """Limit what a host sends and what it receives to a rate such as "1gbit"; "off" lifts the limits.

    Raises:
        ValueError: if the text is not a rate.
    """
    if rate != "off":
        bytes_per_s(rate)
    # What a host receives is what the switch sends it.
    for machine, device in ((port.machine, "eth0"), (switch, port.name)):
        tc = [*machine.enter("net"), program("tc")]
        if rate != "off":
            _run([*tc, "qdisc", "replace", "dev", device, "root", "tbf",
                  "rate", rate, "burst", _BURST, "latency", _LONGEST_QUEUE])  # fmt: skip
        elif any(
            q["kind"] == "tbf"
            for q in json.loads(_run([*tc, "-j", "qdisc", "show", "dev", device]))
        ):
            _run([*tc, "qdisc", "del", "dev", device, "root"])


def cut(port: Port) -> None:
    """Drop every packet that comes or goes by eth0, silently, as a broken cable does."""
    rules = [
        "add table inet cut",  # adding what is there is no error: a second cut changes nothing
        "flush table inet cut",
        "add chain inet cut input { type filter hook input priority 0 ; }",
        "add chain inet cut output { type filter hook output priority 0 ; }",
        "add rule inet cut input iifname eth0 drop",
        "add rule inet cut output oifname eth0 drop",
    ]
    _network(port, "nft", "\n".join(rules))


def heal(port: Port) -> None:
    """Let packets pass again."""
    _network(port, "nft", "add table inet cut\ndelete table inet cut")


def build_wan(folder: Path) -> Path:
    """Compile the switch with a delay into a folder.

    Returns:
        The program.
    """
    target = folder / "wan"
    if not target.exists():
        _run([program("cc"), "-O2", "-Wall", "-o", str(target), str(_WAN_SOURCE)])
    return target


def start_wan(
    switch: Machine, ports: Sequence[Port], folder: Path, rate: str, delay: str
) -> subprocess.Popen[bytes]:
    """Give each host, by now unplugged, an interface eth0 with a rate and a delay.

    Args:
        switch: the machine with which the switch in user space ends.
        ports: at least two, at most 64.
        folder: where the program and its log go.
        rate: of each host's link in each direction, such as "1gbit".
        delay: one way, such as "1ms" or "50us".

    Returns:
        The process that carries the packets.

    Raises:
        ValueError: if a text is not a rate or a delay.
        RuntimeError: if it does not start; with what it said.
    """
    settings = (bytes_per_s(rate), microseconds(delay), _WAN_QUEUE_NBYTES)
    log = folder / "wan.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [
                *switch.enter("pid"),
                str(build_wan(folder)),
                *map(str, settings),
                *(f"/proc/{port.machine.pid}/ns/net" for port in ports),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as stdout:
        if stdout.readline().strip() != b"up":
            process.kill()
            process.wait()
            raise RuntimeError(f"the switch with a delay did not start: {log.read_text().strip()}")
    for port in ports:
        neighbours = [
            f"neigh replace {other.address} lladdr {other.mac} dev eth0"
            for other in ports
            if other is not port
        ]
        own = f"link set eth0 address {port.mac} txqueuelen 1000"
        _ip(port.machine, [own, *_interface(port), *neighbours])
    return process


def bytes_per_s(rate: str) -> float:
    """Read a rate in bits: "100mbit" is 12.5e6 bytes per second.

    Raises:
        ValueError: if the text is not a rate.
    """
    match = _RATE.fullmatch(rate.lower())
    if match is None:
        raise ValueError(f"{rate!r} is not a rate: write 1gbit, 100mbit or 500kbit")
    return float(match[1]) * _BYTES_PER_S[match[2]]


def microseconds(delay: str) -> float:
    """Read a delay: "1ms" is 1000.

    Raises:
        ValueError: if the text is not a delay.
    """
    match = _DELAY.fullmatch(delay.lower())
    if match is None:
        raise ValueError(f"{delay!r} is not a delay: write 1ms or 50us")
    return float(match[1]) * _MICROSECONDS[match[2]]


def _interface(port: Port) -> list[str]:
    return ["link set lo up", f"addr add {port.address}/24 dev eth0", "link set eth0 up"]


def _ip(machine: Machine, lines: Sequence[str]) -> None:
    _run([*machine.enter("net"), program("ip"), "-batch", "-"], "\n".join(lines))


def _network(port: Port, name: str, *arguments: str) -> str:
    return _run([*port.machine.enter("net"), program(name), *arguments])


def _query(port: Port, name: str, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(_network(port, name, *arguments))
    return found


def _run(command: Sequence[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}\n{text}")
    return done.stdout
