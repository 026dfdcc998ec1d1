"""Checks on facts: what cannot be injected here, by outputs as real machines give them.

The outputs of nvidia-smi are those of driver 550 and 535 on A100 and H100 hosts, port states those of
/sys/class/infiniband of mlx5 cards, as the kernel's and NVIDIA's documentation have them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster.doctor.checks.accelerators import forbidding, parse_gpus
from doubletime.cluster.doctor.checks.files import attribute_delay_s
from doubletime.cluster.doctor.facts import Connection, HostFacts, Rate, Refused
from doubletime.cluster.doctor.finding import Finding, Severity, ordered
from doubletime.cluster.ssh import Reply, Trouble
from host_facts import OPEN_MPI, found, record, survey

_A100 = "NVIDIA A100-SXM4-80GB, 550.54.15, 81920 MiB\n"
_H100 = "NVIDIA H100 80GB HBM3, 535.161.08, 81559 MiB\n"
_ACTIVE = {
    "device": "mlx5_0",
    "port": "1",
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "link_layer": "InfiniBand",
    "rate": "200 Gb/sec (4X HDR)",
}
_USABLE = {"rdma": [_ACTIVE], "verbs": {"text": "uverbs0"}, "memlock_nbytes": None}
_NFS = {
    "path": "/shared/job",
    "exists": True,
    "source": "storage:/export/shared",
    "mount": "/shared",
    "type": "nfs4",
    "options": "rw,relatime,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp,sec=sys",
    "space": {"total_nbytes": 1 << 44, "free_nbytes": 1 << 43, "free_files": 1 << 30},
    "error": None,
}


def _only(given: Any) -> Finding:
    (finding,) = found(given).values()
    return finding


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_nothing_is_wrong_with_good_hosts(hosts: int) -> None:
    assert found(survey(*[{}] * hosts, slots=8)) == {}


def test_nothing_is_wrong_with_good_hosts_that_have_all_there_is() -> None:
    rich = {**_USABLE, "gpus": _A100 * 8}
    assert found(survey(rich, rich)) == {}


def test_nothing_is_wrong_with_this_machine_alone() -> None:
    here = HostFacts("this machine", record(()))
    assert found(survey(here=here, hosts=(), names=(), local=None)) == {}


# -- GPUs -------------------------------------------------------------------------------------------


def test_gpus_that_are_unlike() -> None:
    finds = found(survey({"gpus": _A100 * 8}, {"gpus": _A100 * 8}, {"gpus": _H100 * 4}))
    assert sorted(finds) == [
        ("gpu-count", "node3"), ("gpu-driver-differs", "node3"), ("gpu-model", "node3")
    ]  # fmt: skip
    assert finds["gpu-count", "node3"].what == "GPUs on node3: 4; on node1: 8"
    assert "H100" in finds["gpu-model", "node3"].what


def test_a_host_without_gpus_among_hosts_with_them() -> None:
    finding = _only(survey({"gpus": _A100}, {"gpus": None}, {"gpus": _A100}))
    assert (finding.kind, finding.host) == ("gpu-count", "node2")


def test_a_driver_that_does_not_answer() -> None:
    said = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n"
    )
    finds = found(survey({"gpus": _A100}, {"gpus": said}, {"gpus": _A100}))
    assert "couldn't communicate" in finds["gpu-driver", "node2"].what
    assert "modprobe nvidia" in finds["gpu-driver", "node2"].remedy


def test_two_versions_of_nccl() -> None:
    def packages(version: str) -> dict[str, Any]:
        return {"packages": {**record(("a",))["packages"], "nvidia-nccl-cu12": version}}

    finding = _only(survey(packages("2.27.3"), packages("2.26.2"), packages("2.27.3")))
    assert (finding.kind, finding.host) == ("nccl-differs", "node2")
    assert finding.severity is Severity.ERROR


@given(st.text())
def test_whatever_nvidia_smi_says_is_read(text: str) -> None:
    assert all(gpu.memory.endswith("MiB") for gpu in parse_gpus(text))


@given(st.lists(st.sampled_from([_A100, _H100]), max_size=16))
def test_each_gpu_is_read(rows: list[str]) -> None:
    assert len(parse_gpus("".join(rows))) == len(rows)


# -- RDMA -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "physical", "remedy"),
    [
        ("1: DOWN", "2: Polling", "plug in the cable of node2"),
        ("1: DOWN", "3: Disabled", "ibportstate -D 0 1 enable"),
        ("2: INIT", "5: LinkUp", "opensm"),
    ],
)
def test_infiniband_that_is_not_active(state: str, physical: str, remedy: str) -> None:
    port = {**_ACTIVE, "state": state, "phys_state": physical}
    finding = _only(survey(_USABLE, {**_USABLE, "rdma": [port]}))
    assert (finding.kind, finding.host) == ("rdma-inactive", "node2")
    assert remedy in finding.remedy


def test_a_second_port_without_a_cable_is_no_fault() -> None:
    down = {**_ACTIVE, "port": "2", "state": "1: DOWN", "phys_state": "3: Disabled"}
    both = {**_USABLE, "rdma": [_ACTIVE, down]}
    assert found(survey(both, both)) == {}


def test_a_host_without_infiniband_among_hosts_with_it() -> None:
    finding = _only(survey(_USABLE, {}, _USABLE))
    assert (finding.kind, finding.host) == ("rdma-missing", "node2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FI_PROVIDER", "tcp"),
        ("NCCL_IB_DISABLE", "1"),
        ("UCX_TLS", "tcp,self,sm"),
        ("OMPI_MCA_btl", "self,vader,tcp"),
    ],
)
def test_infiniband_that_a_variable_forbids(name: str, value: str) -> None:
    finding = _only(survey(_USABLE, {**_USABLE, "variables": {name: value}}))
    assert (finding.kind, finding.host) == ("rdma-not-used", "node2")
    assert f"unset {name}" in finding.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [("FI_PROVIDER", "verbs"), ("NCCL_IB_DISABLE", "0"), ("UCX_TLS", "rc,sm,self,tcp")],
)
def test_variables_that_allow_infiniband(name: str, value: str) -> None:
    assert forbidding({name: value}) == []


@pytest.mark.parametrize(
    "verbs",
    [
        {"error": "OSError: libibverbs.so.1: cannot open shared object file"},
        {"text": ""},
        None,
    ],
)
def test_infiniband_that_programs_cannot_use(verbs: Any) -> None:
    finding = _only(survey(_USABLE, {**_USABLE, "verbs": verbs}))
    assert (finding.kind, finding.host) == ("rdma-no-verbs", "node2")


def test_little_locked_memory_matters_with_rdma_only() -> None:
    low = {**_USABLE, "memlock_nbytes": 64 << 10}
    finding = _only(survey(_USABLE, low))
    assert (finding.kind, finding.host) == ("memlock-low", "node2")
    assert "64 KiB" in finding.what
    assert "memlock unlimited" in finding.remedy


# -- files ------------------------------------------------------------------------------------------


def test_nfs_is_noted_with_its_delay() -> None:
    finding = _only(survey({"folder": _NFS}, {}))
    assert (finding.kind, finding.severity) == ("nfs-delay", Severity.NOTE)
    assert "up to 60 s late" in finding.what


@pytest.mark.parametrize(
    ("options", "delay_s"),
    [
        ("rw,hard", 60),
        ("rw,noac", 0),
        ("rw,actimeo=3", 3),
        ("rw,acregmax=10,acdirmax=20", 20),
        ("rw,acregmax=10", 60),
    ],
)
def test_how_late_nfs_may_show_a_change(options: str, delay_s: int) -> None:
    assert attribute_delay_s(options) == delay_s


@given(st.text())
def test_any_options_of_a_mount_are_read(options: str) -> None:
    assert attribute_delay_s(options) >= 0


def test_a_folder_missing_beside_nfs_names_its_mount() -> None:
    finds = found(survey({"folder": _NFS}, {"folder": {"exists": False}}))
    remedy = finds["folder-missing", "node2"].remedy
    assert "ssh node2 'sudo mount -t nfs4 storage:/export/shared /shared'" in remedy


def test_a_folder_of_the_same_name_that_is_another() -> None:
    given = survey({}, {})
    other = HostFacts("node2", given.hosts[1].record, is_file_seen=False)
    finding = _only(survey({}, {}, hosts=(given.hosts[0], other)))
    assert (finding.kind, finding.severity) == ("folder-not-shared", Severity.WARNING)


def test_a_file_seen_late() -> None:
    given = survey({}, {})
    late = HostFacts("node2", given.hosts[1].record, seen_after_s=2.5, is_file_seen=True)
    finding = _only(survey({}, {}, hosts=(given.hosts[0], late)))
    assert finding.kind == "folder-late"
    assert "after 2.5 s" in finding.what


def test_a_disk_that_is_nearly_full() -> None:
    space = {"total_nbytes": 1 << 40, "free_nbytes": 1 << 29, "free_files": 1 << 20}
    finding = _only(survey({}, {"checkpoints": {**_NFS, "type": "ext4", "space": space}}))
    assert (finding.kind, finding.severity) == ("disk-nearly-full", Severity.WARNING)
    assert "512 MiB" in finding.what


def test_a_full_disk_that_all_share_is_told_once() -> None:
    space = {"total_nbytes": 1 << 40, "free_nbytes": 1 << 29, "free_files": 1 << 20}
    full = {"checkpoints": {**_NFS, "space": space}}
    assert len(found(survey(full, full, full))) == 1


# -- cores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "own"),
    [
        ({"all": 8, "own": 2, "quota": None}, 2),
        ({"all": 8, "own": 8, "quota": 2.5}, 2),
        ({"all": 8, "own": 8, "quota": 0.5}, 1),
    ],
)
def test_cores_that_affinity_or_a_control_group_withholds(cores: dict[str, Any], own: int) -> None:
    finding = _only(survey({}, {"cores": cores}, slots=4))
    assert (finding.kind, finding.host) == ("cores-fewer-than-slots", "node2")
    assert f"{own} cores for jobs, of 8" in finding.what


# -- software ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch", "mpi4py", "doubletime"])
@pytest.mark.parametrize("version", [None, "0.0.1"])
def test_each_package_that_is_missing_or_another(name: str, version: str | None) -> None:
    packages = record(("a",))["packages"]
    finding = _only(survey({}, {"packages": {**packages, name: version}}))
    kind = "package-missing" if version is None else "package-differs"
    assert (finding.kind, finding.host) == (kind, "node2")
    wanted = packages[name].partition("+")[0]
    assert f"ssh node2 '/shared/venv/bin/python -m pip install {name}=={wanted}'" in finding.remedy


def test_a_package_that_is_missing_on_this_machine_too() -> None:
    packages = {**record(("a",))["packages"], "mpi4py": None}
    finds = found(survey({"packages": packages}, {"packages": packages}))
    assert sorted(finds) == [("package-missing", "node1"), ("package-missing", "node2")]


def test_mpi_of_another_version() -> None:
    old = {"path": "/usr/bin/mpiexec", "said": "HYDRA build details:\n    Version:   4.0.2\n"}
    finds = found(survey({}, {"mpiexec": old}))
    assert "MPICH 4.0.2 on node2" in finds["mpi-differs", "node2"].what
    assert ("mpi-mixed", "node2") in finds


def test_a_patch_of_the_same_version_will_do() -> None:
    patch = {"path": "/usr/bin/mpiexec", "said": "HYDRA build details:\n    Version:   5.0.3\n"}
    assert found(survey({}, {"mpiexec": patch})) == {}


def test_mpiexec_of_one_mpi_and_library_of_another_on_this_machine() -> None:
    other = {"path": "/usr/bin/mpiexec", "said": OPEN_MPI}
    here = HostFacts("this machine", record((), mpiexec=other))
    finding = _only(survey(here=here, hosts=(), names=(), local=None))
    assert finding.kind == "mpi-mixed"
    assert "mpiexec is of Open MPI 5.0.11 (/usr/bin/mpiexec)" in finding.what


def test_an_mpiexec_of_nobody_we_know() -> None:
    finds = found(survey({}, {"mpiexec": {"path": "/opt/mpiexec", "said": "FooMPI 1\n"}}))
    assert "'FooMPI 1'" in finds["mpi-unknown", "node2"].what


def test_no_mpi_at_all_is_but_a_note() -> None:
    none = {"mpiexec": None, "library": {"error": "RuntimeError: cannot load MPI library"}}
    finding = _only(survey(none, none))
    assert (finding.kind, finding.severity) == ("no-mpi", Severity.NOTE)


def test_a_library_that_does_not_load() -> None:
    error = {"library": {"error": "RuntimeError: cannot load MPI library\nlibmpi.so.12: …"}}
    finding = _only(survey({}, error))
    assert (finding.kind, finding.host) == ("mpi-library", "node2")


# -- between hosts ----------------------------------------------------------------------------------


def _connection(source: str, target: str, error: str | None = None) -> Connection:
    address = f"10.0.0.{target[-1]}"
    return Connection(source, target, address, "10.0.0.0/24", error, None if error else 1e-4)


def test_one_pair_that_does_not_connect() -> None:
    pairs = [(one, other) for one in "123" for other in "123" if one != other]
    connections = tuple(
        _connection(f"node{one}", f"node{other}", "timeout" if (one, other) == ("1", "3") else None)
        for one, other in pairs
    )
    finding = _only(survey({}, {}, {}, connections=connections))
    assert (finding.kind, finding.host) == ("port-closed", "node1 - node3")


def test_a_host_that_reaches_nobody() -> None:
    pairs = [(one, other) for one in "123" for other in "123" if one != other]
    connections = tuple(
        _connection(f"node{one}", f"node{other}", "timeout" if one == "2" else None)
        for one, other in pairs
    )
    finding = _only(survey({}, {}, {}, connections=connections))
    assert (finding.kind, finding.host) == ("firewall-out", "node2")


def test_one_slow_pair_is_named() -> None:
    rates = [
        Rate(f"node{one}", f"node{other}", 1e8, 1e8)
        for one in "123"
        for other in "123"
        if one != other
    ]
    rates[0] = Rate("node1", "node2", 4e7, 1e8)
    finding = _only(survey({}, {}, {}, rates=tuple(rates)))
    assert (finding.kind, finding.host) == ("link-slow", "node1 - node2")
    assert "40 MB/s, others 100 MB/s" in finding.what


def test_hosts_whose_packets_differ_in_length() -> None:
    def mtu(index: int, nbytes: int) -> dict[str, Any]:
        address = f"10.0.0.{index}"
        return {"interfaces": [{"name": "eth0", "address": address, "width": 24, "mtu": nbytes}]}

    finding = _only(survey(mtu(1, 9000), mtu(2, 1500), mtu(3, 9000)))
    assert (finding.kind, finding.host) == ("mtu-differs", "node2")
    assert "mtu 9000" in finding.remedy


# -- clocks, logins, order --------------------------------------------------------------------------


@given(st.lists(st.floats(-0.4, 0.4), min_size=1, max_size=6), st.floats(1.9, 1e9))
def test_a_clock_is_found_and_no_other(clocks: list[float], wrong_s: float) -> None:
    offsets = [0.0, *clocks, 0.0]
    hosts = tuple(
        HostFacts(f"node{index + 1}", record(tuple(f"node{n + 1}" for n in range(len(offsets))),
                  index), clock_s=offset)
        for index, offset in enumerate(offsets)
    )  # fmt: skip
    names = tuple(facts.host for facts in hosts)
    good = survey(here=hosts[0], hosts=hosts, names=names, local="node1")
    assert found(good) == {}
    bad = HostFacts(names[1], hosts[1].record, clock_s=wrong_s)
    many = (hosts[0], bad, *hosts[2:])
    finding = _only(survey(here=hosts[0], hosts=many, names=names, local="node1"))
    assert (finding.kind, finding.host) == ("clock-apart", "node2")


def test_debians_own_name_matters_among_several_hosts_only() -> None:
    def debian(*names: str) -> dict[str, Any]:
        usual = record(names)
        return {"names": {**usual["names"], "node1": ["127.0.1.1"]}, "own_addresses": ["127.0.1.1"]}

    assert found(survey(debian("node1"))) == {}
    finding = _only(survey(debian("node1", "node2"), {}))
    assert (finding.kind, finding.host) == ("name-is-loopback", "node1")
    assert "10.0.0.1 node1" in finding.remedy


def test_a_name_that_only_ssh_knows() -> None:
    usual = record(("node1", "node2"))
    names = {"names": {**usual["names"], "node2": []}, "routes": {**usual["routes"], "node2": None}}
    finding = _only(survey(names, {}))
    assert (finding.kind, finding.host) == ("name-of-ssh-only", "node2")


def test_a_host_that_stops_answering() -> None:
    given = survey({}, {})
    lost = {"node2": "no answer to 'facts' within 30 s"}
    finding = _only(survey({}, {}, hosts=given.hosts[:1], lost=lost))
    assert (finding.kind, finding.host) == ("host-lost", "node2")
    assert "within 30 s" in finding.what


@given(st.sampled_from(Trouble), st.binary(max_size=80))
def test_each_trouble_of_ssh_has_a_finding(trouble: Trouble, said: bytes) -> None:
    refused = {"node2": Refused(Reply("node2", 255, b"", said, 1.0), trouble)}
    given = survey({}, {})
    finding = _only(survey({}, {}, hosts=given.hosts[:1], refused=refused))
    assert finding.host == "node2"
    assert finding.severity is Severity.ERROR
    assert "node2" in finding.remedy + finding.what


@given(
    st.lists(
        st.builds(
            Finding,
            st.sampled_from("abc"),
            st.just("what"),
            st.sampled_from(["node1", "node2"]),
            st.just("why"),
            st.just("remedy"),
            st.sampled_from(Severity),
        )
    )
)
def test_the_worst_comes_first_and_nothing_is_lost(findings: list[Finding]) -> None:
    result = ordered(findings)
    assert sorted(map(id, result)) == sorted(map(id, findings))
    assert [each.severity for each in result] == sorted(each.severity for each in findings)
