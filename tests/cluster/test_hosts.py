"""Hosts as people write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime.cluster import hosts
from doubletime.cluster.hosts import Host
from doubletime.errors import LaunchError

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}(\.[a-z0-9]{1,3})?", fullmatch=True)
HOSTS = st.lists(
    st.builds(Host, NAMES, st.none() | st.integers(1, 999)), min_size=1, unique_by=lambda h: h.name
)
BLANKS = st.text(" \t", max_size=3)


@given(HOSTS)
def test_a_list_says_what_was_meant(meant):
    assert list(hosts.parse(",".join(map(str, meant)))) == meant


@given(meant=HOSTS, data=st.data())
def test_a_hostfile_of_either_dialect_says_what_was_meant(meant, data, tmp_path_factory):
    lines = []
    for host in meant:
        noise = data.draw(st.sampled_from(["", "\n", "# a comment\n", "   \n"]))
        line = data.draw(
            st.sampled_from([str(host)])
            if host.slots is None
            else st.sampled_from([
                str(host), f"{host.name} slots={host.slots}", f"{host.name}\tslots = {host.slots}",
                f"{host.name} slots={host.slots} max_slots={host.slots + 1}",
                f"{host.name} max-slots=9 slots={host.slots}",
            ])
        )  # fmt: skip
        end = data.draw(st.sampled_from(["\n", "\r\n", " # why\n", "#why\n"]))
        lines.append(noise + data.draw(BLANKS) + line + data.draw(BLANKS) + end)
    file = tmp_path_factory.mktemp("hostfile") / "hosts"
    file.write_bytes("".join(lines).encode())
    assert list(hosts.read_hostfile(file)) == meant


@given(first=st.integers(0, 150), count=st.integers(1, 60), width=st.integers(0, 4))
def test_a_range_names_each_number_once_in_order_and_as_wide_as_its_first(first, count, width):
    start = str(first).zfill(width)
    last = first + count - 1
    expected = [f"n{str(number).zfill(len(start))}" for number in range(first, last + 1)]
    assert list(hosts.expand(f"n[{start}-{last}]")) == expected


def test_ranges_with_lists_with_several_brackets_and_slots():
    assert hosts.expand("n[01-03,20],login") == ("n01", "n02", "n03", "n20", "login")
    assert hosts.expand("r[1-2]n[8-9].x") == ("r1n8.x", "r1n9.x", "r2n8.x", "r2n9.x")
    assert hosts.parse("n[1-2]:4, 10.0.0.7") == (Host("n1", 4), Host("n2", 4), Host("10.0.0.7"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a name is missing"),
        ("a,,b", "a name is missing"),
        (":2", "a name is missing"),
        ("a:0", "'0' is no number of slots"),
        ("a:two", "'two' is no number of slots"),
        ("a:", "'' is no number of slots"),
        ("a:2:3", "'2:3' is no number of slots"),
        ("a b", "'a b' is no host name"),
        ("-x", "'-x' is no host name"),
        ("a;reboot", "is no host name"),
        ("me@a", "the user's name belongs into ~/.ssh/config"),
        ("n[1-", "brackets do not match"),
        ("n1-2]", "brackets do not match"),
        ("n[]", r"\[\] is no range"),
        ("n[a-b]", r"\[a-b\] is no range"),
        ("n[9-1]", "runs backwards"),
        ("n[1-99999999999]", "65536 are the most"),
        ("n[1-999][1-999]", "65536 are the most"),
        ("a:99999", "4096 are the most"),
        ("::1,b", "an IPv6 address is none"),
        ("fd00:1:2:3:4:5:6:7", "an IPv6 address is none"),
    ],
)
def test_what_is_no_list_is_told(text, why):
    with pytest.raises(LaunchError, match=why):
        hosts.parse(text)


def test_a_host_listed_twice_is_refused_with_the_sum_of_its_slots(tmp_path):
    with pytest.raises(LaunchError, match=r"host a is listed twice\n.*once, as a:3"):
        hosts.parse("a:2,b,a")
    with pytest.raises(LaunchError, match=r"host Node1 is listed twice\n.*once, as node1:3"):
        hosts.parse("node1:2,Node1")
    file = tmp_path / "hosts"
    file.write_text("a slots=2\n\n# again\nn[1-2]\na slots=2\n")
    with pytest.raises(LaunchError, match=r"twice \(.*hosts, line 1 and line 5\)\n.*as a:4"):
        hosts.read_hostfile(file)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("b slot=2", "'slot=2' says nothing that is known"),
        ("b 2", "'2' says nothing that is known"),
        ("b slots=0", "'0' is no number of slots"),
        ("b slots=2.5", "'2.5' is no number of slots"),
        ("b:2 slots=2", "said twice"),
        ("b, c", "'c' says nothing"),
        ("b c", "'c' says nothing"),
        ("b:x", "'x' is no number of slots"),
    ],
)
def test_a_wrong_line_is_told_with_file_number_and_what_is_expected(line, why, tmp_path):
    file = tmp_path / "hosts"
    file.write_text(f"# cluster\na:2\n{line}  # odd\n")
    with pytest.raises(LaunchError) as caught:
        hosts.read_hostfile(file)
    assert f"{file}, line 3: " in caught.value.what
    assert why in caught.value.what
    assert "`node1 slots=2`" in caught.value.remedy


def test_a_hostfile_that_is_none(tmp_path):
    with pytest.raises(LaunchError, match="No such file"):
        hosts.read_hostfile(tmp_path / "absent")
    empty = tmp_path / "empty"
    empty.write_text("# nobody\n\n")
    with pytest.raises(LaunchError, match="names no host"):
        hosts.read_hostfile(empty)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LaunchError, match="is no text"):
        hosts.read_hostfile(tmp_path / "binary")
    with pytest.raises(LaunchError, match="larger than 4 MiB"):
        hosts.read_hostfile(Path("/dev/zero"))
