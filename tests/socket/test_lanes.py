"""Lanes: whole messages in order, over a connection of one host and user, and nothing that a peer sends costs anyone else."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import zmq
from processes import Processes
from test_bad_messages import Member

import gt
from gt.errors import ProtocolError
from gt.spec import float32
from gt.transport import lanes, polling, shm
from gt.transport import messages as m
from gt.transport.addresses import ipc_address
from gt.transport.lanes import BEGINS, ENDS, PACKET, WHOLE, Lane
from gt.transport.polling import Sources
from gt.transport.zmq import ZmqLink

pytestmark = pytest.mark.skipif(not shm.supported(), reason="no lanes here")
LIMIT = 1 << 20

SCRIPT = """
    import json, sys, gt
    from gt.client.default import session
    if len(sys.argv) > 1: gt.connect(sys.argv[1])
    x = gt.tensor([1.0, 2.0])
    found = [(x + i).tolist() for i in range(5)]
    stats = session().ask("stats")
    worker = next(iter(stats["workers"].values()))
    print(json.dumps([found, stats["dispatcher"]["lane_messages"], worker["lane_runs"], worker["lane_answers"]]))
"""


@pytest.fixture
def ends() -> Iterator[tuple[Lane, Lane]]:
    made = [Lane(s) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    yield made[0], made[1]
    for lane in made:
        lane.close()


def all_of(lane: Lane) -> list[bytes]:
    found = []
    while data := lane.receive(LIMIT):
        found.append(bytes(data))
    return found


def test_messages_of_any_length_come_whole_and_in_order(ends: tuple[Lane, Lane]) -> None:
    one, other = ends
    sent = [b"x", os.urandom(PACKET), os.urandom(PACKET + 1), b"y" * 3, os.urandom(3 * PACKET)]
    found = []
    for message in sent:
        assert one.send(message) and not one.rest
        found += all_of(other)
    assert found == sent


def test_a_message_that_finds_no_room_is_not_taken_and_the_rest_of_a_long_one_follows(ends: tuple[Lane, Lane]) -> None:
    one, other = ends
    long, small = os.urandom(24 * PACKET), os.urandom(1000)
    assert one.send(long) and one.rest and not one.send(small)
    found = []
    while not one.push():
        found += all_of(other)
    while not one.send(small):
        found += all_of(other)
    assert found + all_of(other) == [long, small]


def test_the_beginning_of_a_message_that_was_never_ended_is_dropped(ends: tuple[Lane, Lane]) -> None:
    one, other = ends
    for packet in (
        bytes([BEGINS]) + b"lost",
        WHOLE + b"kept",
        bytes([ENDS]) + b"nothing",
        bytes([BEGINS]) + b"a",
        bytes([ENDS]) + b"b",
    ):
        one.connection.send(packet)
    assert all_of(other) == [b"kept", b"ab"]


def test_a_message_or_a_packet_that_is_too_long_is_an_error(ends: tuple[Lane, Lane]) -> None:
    one, other = ends
    one.send(b"x" * (2 * PACKET))
    with pytest.raises(ProtocolError, match="over the limit"):
        other.receive(PACKET)
    one.connection.send(WHOLE + b"x" * (PACKET + 1))
    with pytest.raises(ProtocolError, match="a packet of more"):
        all_of(other)


def test_a_lane_whose_peer_is_gone_gives_its_last_messages_and_then_its_end(ends: tuple[Lane, Lane]) -> None:
    one, other = ends
    one.send(b"last")
    one.close()
    assert other.receive(LIMIT) == b"last" and other.receive(LIMIT) == b""
    with pytest.raises(OSError):
        other.send(b"x")
    other.send_waiting(b"x", lambda: False)  # to nobody, and without end


@pytest.mark.parametrize("many", [False, True])
def test_a_socket_that_was_used_is_asked_before_the_next_sleep(many: bool) -> None:
    """Its descriptor is silent by then, though a message waits."""
    context = zmq.Context.instance()
    with context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind(f"inproc://test-sources-{many}")  # a name is free again some time after its socket is closed
        other.connect(f"inproc://test-sources-{many}")
        sources = Sources(many=many)
        sources.add(other)
        assert sources.wait(0) == []
        for word in (b"1", b"2"):
            one.send(word)
        assert other.poll(10_000)  # which reads the event of the descriptor
        assert sources.wait(0) == []
        sources.used(other)
        assert sources.wait(10_000) == [other]
        assert other.recv() == b"1" and sources.wait(10_000) == [other]  # the second is still there
        assert other.recv() == b"2" and sources.wait(0) == []
        sources.remove(other)


def kept_by_the_kernel() -> set[int]:
    """The descriptors in this process's epoll sets: a wait for one of these does not pass over the others."""
    kept = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]":
                kept |= {int(n) for n in re.findall(r"^tfd:\s*(\d+)", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.M)}
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return kept


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")
def test_a_dispatcher_does_not_pass_over_the_lanes_of_a_thousand_clients_in_each_wait() -> None:
    with ExitStack() as opened:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(500)]
        lanes = [Lane(opened.enter_context(end)) for pair in pairs for end in pair]
        sources = Sources(many=True)
        for lane in lanes:
            sources.add(lane.fd)
        lanes[0].send(b"x")
        assert {lane.fd for lane in lanes} <= kept_by_the_kernel()
        calls: list[str] = []
        sys.setprofile(lambda frame, event, arg: calls.append(event))
        found = sources.wait(0)
        sys.setprofile(None)
        assert found == [lanes[1].fd] and len(calls) < 50, len(calls)


def test_a_descriptor_is_given_while_there_is_room_to_write_if_that_is_asked_for(ends: tuple[Lane, Lane]) -> None:
    one, _ = ends
    for many in (False, True):
        sources = Sources(many=many)
        sources.watch_room(one.fd, True)
        assert sources.wait(0) == [one.fd]
        sources.watch_room(one.fd, False)
        assert sources.wait(0) == []


def test_a_connected_client_costs_the_dispatcher_one_zmq_connection_and_its_lane(
    processes: Processes,
) -> None:
    server, port = processes.server()
    dispatcher, clients = psutil.Process(server.pid), 60
    with ExitStack() as opened:

        def connect(count: int) -> tuple[int, int]:
            """Descriptors and bytes of the dispatcher once as many more are connected."""
            for _ in range(count):
                opened.callback(ZmqLink(ipc_address(str(port)), timeout=60.0)._close_sockets)
            return dispatcher.num_fds(), dispatcher.memory_info().rss

        fds, rss = connect(20)
        more_fds, more = connect(clients)
        assert more_fds - fds == 2 * clients, "one that it receives from, and the lane that it sends over"
        assert (more - rss) / clients < 50e3, f"{(more - rss) / clients / 1e3:.0f} KB a client"


@pytest.mark.parametrize(("spin", "found"), [("60", 1), ("0", 0)])
def test_a_wait_spins_where_the_last_one_was_short(monkeypatch: pytest.MonkeyPatch, spin: str, found: int) -> None:
    monkeypatch.setenv("GT_SPIN", spin)
    sources, (one, other) = Sources(), os.pipe()
    sources.add(one)
    os.write(other, b"1")
    assert sources.wait(60_000) == [one] and sources.spins == 0  # nothing is known of the wait before
    assert sources.wait(60_000) == [one] and sources.spins == found
    os.read(one, 1)
    monkeypatch.setenv("GT_SPIN", "1e-6")
    seldom = Sources()
    seldom.add(one)
    assert seldom.wait(5) == []
    os.write(other, b"1")
    assert seldom.wait(60_000) == [one] and seldom.spins == 0  # the last wait was long: asleep from the beginning
    os.close(one)
    os.close(other)


def test_a_wait_behind_a_read_spins_where_the_last_one_was_as_long_as_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "spin_seconds", lambda: (1e-6, 60.0))
    for read in (False, True):
        sources, (one, other) = Sources(), os.pipe()
        sources.add(one)
        sources.read = read
        assert sources.wait(2) == []
        os.write(other, b"1")
        assert sources.wait(60_000) == [one] and sources.spins == read
        os.close(one)
        os.close(other)


@pytest.mark.parametrize(
    ("between", "least", "most"),
    [((0.2,), 0.0, 0.03), ((0.02, 0.02, 0.02, *(0.2,) * 50), 0.0, 0.05), ((0.001,), 0.95, 1.01)],
    ids=["seldom", "at times several", "always"],
)
def test_a_wait_rests_for_long_only_where_its_core_is_taken_again_and_again(
    monkeypatch: pytest.MonkeyPatch, between: tuple[float, ...], least: float, most: float
) -> None:
    """The share of time without spinning where others take the core for a millisecond: a few times a second, as the thread
    that reports to observers does, or whenever they can."""
    monkeypatch.setattr(polling, "spin_seconds", lambda: (1e9, 1e9))
    now, taken_at, rested, pauses = 100.0, 100.0, 0.0, cycle(between)

    def yield_core() -> None:
        nonlocal now, taken_at
        now += 1e-4
        if now >= taken_at:
            now += 1e-3
            taken_at = now + next(pauses)

    monkeypatch.setattr(polling, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(polling, "_yield_core", yield_core)
    sources = Sources()
    while now < 200.0:
        sources._soon = True
        assert sources.wait(1e-4) == []
        if sources._rest_until > now:
            rested += sources._rest_until - now
            now = sources._rest_until + 1e-6
    assert least <= rested / 100 <= most


@pytest.mark.parametrize(("cores", "yields"), [(2, True), (4, False)])
def test_an_interactive_client_keeps_its_core_while_it_spins_where_others_have_cores_of_their_own(
    monkeypatch: pytest.MonkeyPatch, cores: int, yields: bool
) -> None:
    monkeypatch.setattr(polling, "_cores", lambda: cores)
    now, yielded = 100.0, []

    def clock() -> float:
        nonlocal now
        now += 1e-5
        return now

    monkeypatch.setattr(polling, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(polling, "_yield_core", lambda: yielded.append(now))
    sources, (one, other) = Sources(keeps_core=True), os.pipe()
    sources.add(one)
    sources._soon = True
    assert sources.wait(1) == [] and bool(yielded) == yields
    sources._soon = True
    os.write(other, b"1")
    assert sources.wait(60_000) == [one] and sources.spins == 1
    os.close(one)
    os.close(other)


def test_a_message_of_a_read_passes_the_core_on_where_the_next_wait_would_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where waits do not spin, behind other messages, or while another program needs the core."""
    now, yields, lasts = 100.0, 0, 1e-6

    def yield_core() -> None:
        nonlocal now, yields
        now, yields = now + lasts, yields + 1

    monkeypatch.setattr(polling, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(polling, "_yield_core", yield_core)
    sources, seen = Sources(), []
    for soon, read in ((False, True), (True, False), (True, True)):
        sources._soon, sources.read = soon, read
        sources.answered()
        seen.append(yields)
    assert seen == [0, 0, 1]
    lasts = 2 * polling.TAKEN
    sources.answered()
    sources.answered()
    assert yields == 2 and sources._rest_until == now + polling.FIRST_REST
    now += 2 * polling.FIRST_REST
    sources.answered()
    assert yields == 3


@pytest.mark.parametrize("wanted", ["1", "0"])
def test_the_messages_of_one_host_go_over_lanes_unless_they_are_switched_off(processes: Processes, wanted: str) -> None:
    script = processes.script(SCRIPT, GT_LANES=wanted, GT_ONE_PROCESS="0")
    assert script.ended() == 0, script.err
    values, messages, runs, answers = json.loads(script.out)
    assert values == [[1.0 + i, 2.0 + i] for i in range(5)]
    assert (messages >= 5 and runs >= 5 and answers >= 5) if wanted == "1" else (messages, runs, answers) == (0, 0, 0)


def test_a_server_in_the_place_of_one_that_was_killed_takes_lanes(processes: Processes) -> None:
    first, port = processes.server()
    first.kill()
    first.ended()
    _, port = processes.server(port=port)
    processes.worker(port)
    script = processes.script(SCRIPT, f"localhost:{port}")
    assert script.ended() == 0, script.err
    assert json.loads(script.out)[1] >= 5


def test_only_admitted_clients_have_a_lane_and_a_member_pays_for_its_messages(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port)
    address = ipc_address(str(port))
    stranger, _ = lanes.connect(address)
    member = Member(address)
    lane, token = lanes.connect(address)
    assert stranger is not None and lane is not None
    member.send(m.Hello(m.VERSION, "", "here", 7, lane=token))
    assert member.until(m.Welcome).lane
    stranger.send(m.encode(m.Batch(1, (), [])))  # nobody reads it
    lane.send(m.encode(m.Batch(1, (m.KindDef(1, "full", ((-3,),), ((2,), float32.code)),), [(1, 5, 3.0)], (), True)))
    assert member.until(m.Ack).serial == 1
    lane.send(b"\xc1" * 10)
    assert "invalid message" in member.until(m.Bye).why
    gt.connect(f"localhost:{port}")
    assert (gt.ones(2) + 1).tolist() == [2.0, 2.0]
    stranger.close()
    lane.close()
    member.socket.close()


def test_a_message_beyond_the_limit_on_a_lane_ends_its_sender_alone(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port)
    member = Member(ipc_address(str(port)))
    lane, token = lanes.connect(ipc_address(str(port)))
    assert lane is not None
    member.send(m.Hello(m.VERSION, "", "here", 7, lane=token))
    assert member.until(m.Welcome).lane
    lane.send_waiting(b"x" * (9 << 20), lambda: False)
    assert "over the limit" in member.until(m.Bye).why
    gt.connect(f"localhost:{port}")
    assert (gt.ones(2) + 1).tolist() == [2.0, 2.0]
    lane.close()
    member.socket.close()
