"""Both ends of the control channel, over real sockets of this host."""

import os
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubletime import failure
from doubletime.cluster.beginning import Sight
from doubletime.cluster.channel import Address, Line, Silence, silence_s
from doubletime.cluster.contact import Contact
from doubletime.cluster.control import Control
from doubletime.errors import LaunchError


@pytest.fixture
def control():
    control = Control((), {"tag": False, "log_folder": None})
    control.start()
    yield control
    control.close()


def hold(contact, until, timeout_s=5.0):
    end_s = time.monotonic() + timeout_s
    while not until():
        assert time.monotonic() < end_s
        contact.wait(0.02)


def say_failure(contact, rank, age_s):
    message = {"rank": rank, "host": "x", "exit_code": 3, "text": "why\n", "age_s": age_s}
    contact.say({"failure": message})


@given(
    st.lists(st.sampled_from(["10.0.0.1", "fe80::1", "node1", "::ffff:1.2.3.4"]), min_size=1),
    st.integers(1, 65535),
)
def test_an_address_is_read_as_it_was_written(hosts, port):
    address = Address(tuple(hosts), port, "abc")
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:port:token", ":"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(LaunchError):
        Address.parse(text)


def test_the_limit_of_silence():
    assert silence_s({}) == 6.0
    assert silence_s({"DOUBLETIME_SILENCE_S": "30"}) == 30.0
    for nonsense in ("1", "inf", "-3", "nan", "soon"):
        with pytest.raises(LaunchError, match="DOUBLETIME_SILENCE_S"):
            silence_s({"DOUBLETIME_SILENCE_S": nonsense})


def test_a_process_that_was_stopped_blames_nobody_for_it():
    silence = Silence(0.0)
    assert silence.length_s(0.5) == 0.5
    assert silence.length_s(100.0) == 1.5
    silence.heard(101.0)
    assert silence.length_s(101.25) == 0.25


def test_records_come_the_earliest_first_by_the_launcher_s_clock(control):
    contacts = [Contact(control.address, rank) for rank in range(2)]
    say_failure(contacts[0], 0, 0.0)
    say_failure(contacts[1], 1, 100.0)
    hold(contacts[0], lambda: len(control.failures()) == 2)
    assert [each.rank for each in control.failures()] == [1, 0]
    assert abs(control.failures()[1].time_s - time.time()) < 2
    for contact in contacts:
        contact.say({"end": 3})
        contact.part(1.0)
    assert control.settle(2.0)
    assert control.losses() == []


def test_orders_reach_all_ranks_those_too_that_come_later(control):
    early = Contact(control.address, 0)
    control.order(15)
    hold(early, lambda: early.orders == [15])
    late = Contact(control.address, 1)
    hold(late, lambda: late.orders == [15])
    early.close()
    late.close()


def test_a_broken_line_is_made_anew_and_all_said_again(control):
    contact = Contact(control.address, 0)
    assert contact._line is not None
    contact._line.socket.shutdown(socket.SHUT_RDWR)
    say_failure(contact, 0, 0.0)
    hold(contact, lambda: bool(control.failures()))
    assert not contact.is_lost
    assert not control.has_deserted_ranks
    contact.close()


def test_a_watch_that_tries_several_addresses_keeps_one_line(control):
    several = Address(("127.0.0.1", "127.0.0.1", "localhost"), *_rest(control.address))
    contact = Contact(several, 0)
    line = contact._line
    end_s = time.monotonic() + 1.5
    while time.monotonic() < end_s:
        contact.wait(0.05)
    assert contact._line is line
    control.order(15)
    hold(contact, lambda: contact.orders == [15])
    contact.say({"end": 0})
    contact.part(1.0)
    assert control.settle(2.0)


def _rest(address):
    return address.port, address.token


def test_a_watch_that_is_gone_without_a_word_is_missed(control):
    contact = Contact(control.address, 0)
    contact.close()
    end_s = time.monotonic() + 5
    while not control.has_deserted_ranks:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert control.losses() == []  # its host, this one, is there


def test_a_launcher_that_has_ended_is_known_at_once():
    control = Control((), {"tag": False, "log_folder": None})
    control.start()
    contact = Contact(control.address, 0)
    control.close()
    began_s = time.monotonic()
    hold(contact, lambda: contact.is_lost)
    assert time.monotonic() - began_s < 1
    contact.close()


def test_ranks_begin_when_all_have_come():
    seen = Sight("script x.py", "/", is_there=True, content=(1, 1))
    control = Control(("a", "b"), {"tag": False, "log_folder": None}, seen)
    control.start()
    try:
        first = Contact(control.address, 0, seen._asdict())
        first.wait(0.1)
        assert not first.may_begin
        second = Contact(control.address, 1, seen._asdict())
        hold(first, lambda: first.may_begin)
        hold(second, lambda: second.may_begin)
        again = Contact(control.address, 1, seen._asdict())  # its line had to be made anew
        assert again.may_begin
        for contact in (first, second, again):
            contact.close()
    finally:
        control.close()


def test_on_one_host_a_rank_begins_at_once(control):
    contact = Contact(control.address, 0)
    assert contact.may_begin
    contact.close()


def test_while_the_launcher_stands_still_its_silence_is_borne(monkeypatch):
    monkeypatch.setattr(Line, "is_within_host", False)  # where silence counts
    monkeypatch.setenv("DOUBLETIME_SILENCE_S", "2")
    control = Control((), {"tag": False, "log_folder": None})
    control.start()
    try:
        contact = Contact(control.address, 0)
        control.pause(is_on=True)
        hold(contact, lambda: contact.is_paused)
        with control._lock:  # as if it were stopped
            hold(contact, _after(2.5))
        assert not contact.is_lost
        control.pause(is_on=False)
        hold(contact, lambda: not contact.is_paused)
        contact.close()
    finally:
        control.close()


def _after(time_s):
    end_s = time.monotonic() + time_s
    return lambda: time.monotonic() > end_s


_LISTENS = """
import resource, sys
from doubletime.cluster.control import Control
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (20, most))
control = Control((), {"tag": False, "log_folder": None})
control.start()
print(control.address, flush=True)
sys.stdin.read()
control.close()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_a_launcher_has_room_for_more_ranks_than_the_usual_limit_allows():
    command = [sys.executable, "-c", _LISTENS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as launcher:
        address = Address.parse(launcher.stdout.readline().strip())
        contacts = [Contact(address, rank) for rank in range(40)]
        for contact in contacts:
            contact.say({"end": 0})
            contact.part(1.0)
        launcher.stdin.close()
        assert launcher.stdout.read() == "20\n"


def test_strangers_are_hung_up_on(control):
    for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"hello": {"token": "x", "rank": 0}}\n', b"[1]\n"):
        with socket.create_connection(("127.0.0.1", control.address.port)) as stranger:
            stranger.settimeout(5)
            stranger.sendall(said)
            assert stranger.recv(100) == b""
    assert control.failures() == []


def test_a_line_takes_messages_in_any_pieces():
    ours, theirs = _pair()
    line = Line(ours)
    whole = b'{"a": 1}\n{"b": "' + b"x" * 100 + b'"}\n'
    found = []
    for index in range(0, len(whole), 7):
        theirs.sendall(whole[index : index + 7])
        time.sleep(0.001)
        found += line.receive()
    assert found == [{"a": 1}, {"b": "x" * 100}]
    theirs.close()
    with pytest.raises(ConnectionError):
        line.receive()
    line.close()


def _pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


def test_the_name_of_a_record_s_host_is_the_watch_s(control):
    contact = Contact(control.address, 0)
    say_failure(contact, 0, 0.0)
    hold(contact, lambda: bool(control.failures()))
    assert control.failures()[0].host == os.uname().nodename == failure.now(0, 1, "").host
    contact.close()
