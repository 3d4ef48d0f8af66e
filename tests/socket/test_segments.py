"""Segments: passed to one peer, lent until given back, mapped once, and never written while someone looks."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from gt.errors import ProtocolError
from gt.transport import shm
from gt.transport.channels import WORD, Channel
from gt.transport.shm import ARENA, LEND, SMALL, Segment, SegmentPool
from gt.worker.shared_memory import SharedMemory

pytestmark = pytest.mark.skipif(not shm.supported(), reason="no memory files here")


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a channel."""
    made = [Channel(s) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    yield made[0], made[1]
    for channel in made:
        channel.close()


def data(n: int, value: int = 7) -> np.ndarray:
    return np.full(n, value, np.uint8)


def placed(pool: SegmentPool, channel: Channel, array: np.ndarray) -> tuple[int, int, int]:
    segment, at, _ = pool.pack(array)
    assert channel.give(segment)
    return (segment.serial, at, array.nbytes)


def test_packed_bytes_are_read_at_their_place(ends: tuple[Channel, Channel]) -> None:
    pool, (mine, its) = SegmentPool(), ends
    for n in (1, 100, SMALL, SMALL + 1, LEND + 5):
        np.testing.assert_array_equal(its.view(placed(pool, mine, data(n)), n), data(n))
    assert len(its.maps) == len(mine.passed) == 3  # an arena, and two of their own


def test_small_arrays_share_a_segment_and_large_ones_have_their_own() -> None:
    pool = SegmentPool()
    (a, at_a, _), (b, at_b, _), (c, _, sealed) = pool.pack(data(10)), pool.pack(data(10)), pool.pack(data(SMALL + 1))
    assert a is b and at_a != at_b and c is not a and sealed == [c.serial]


def test_a_full_arena_is_sealed_and_another_begun() -> None:
    pool = SegmentPool()
    sealed = []
    for _ in range(2 * ARENA // SMALL + 1):
        sealed += pool.pack(data(SMALL))[2]
    assert len(sealed) == 2


def test_a_segment_given_back_is_used_again() -> None:
    pool = SegmentPool()
    first = pool.take(1 << 20)
    pool.give(first.serial)
    assert pool.take(1 << 20) is first
    second = pool.take(1 << 20)
    assert second is not first
    pool.give(first.serial)
    pool.give(second.serial)
    assert pool.take(1 << 20) is second, "the last one used is in the caches"


def test_idle_segments_are_bounded_and_the_peer_lets_go_of_those_dropped(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[Channel, Channel]
) -> None:
    monkeypatch.setattr(shm, "KEEP", 4 << 20)
    mine, its = ends
    pool = SegmentPool(mine.drop)
    segments = [pool.take(1 << 20) for _ in range(20)]
    for segment in segments:
        assert mine.give(segment)
    assert its.take_in() and len(its.maps) == 20
    for segment in segments:
        pool.give(segment.serial)
    assert sum(s.size for s in pool.idle) <= 4 << 20 and pool.outstanding() == 0
    assert its.take_in() and its.maps.keys() == mine.passed == {s.serial for s in pool.idle}


def test_releasing_a_segment_that_is_not_lent_is_harmless() -> None:
    SegmentPool().give(12345)


def test_a_loan_ends_when_the_last_view_of_it_is_gone(ends: tuple[Channel, Channel]) -> None:
    """Views of views count, also where NumPy lets them refer past those between."""
    (mine, its), ended = ends, list[int]()
    array = its.view(placed(SegmentPool(), mine, data(LEND)), LEND, lambda: ended.append(1))
    views = [array.view(np.float32), array.view(np.ndarray).view(np.int16).reshape(2, -1)[1], array[5:].reshape(-1)[3:]]
    del array
    while views:
        gc.collect()
        assert not ended
        views.pop()
    gc.collect()
    assert ended == [1]


def test_a_segment_cannot_be_cut_short_or_unsealed() -> None:
    segment = Segment(1 << 16)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, 0)


def test_only_sealed_memory_files_are_taken(ends: tuple[Channel, Channel], tmp_path: object) -> None:
    mine, its = ends
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    file = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        for serial, fds in ((1, [unsealed]), (2, [file]), (3, []), (4, [unsealed, file])):
            socket.send_fds(mine.connection, [WORD.pack(serial, 4096)], fds)
        mine.connection.send(b"odd")
        assert its.take_in() and its.maps == {}
    finally:
        os.close(unsealed)
        os.close(file)
    with pytest.raises(ProtocolError, match="no such segment was passed"):
        its.view((1, 0, 16), 16)


def test_segments_that_say_they_are_larger_than_any_memory_take_no_addresses(ends: tuple[Channel, Channel]) -> None:
    """They cost their sender nothing; a process has 128 TB of addresses, and dies without any."""
    mine, its = ends
    sparse = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(sparse, 1 << 44)
    fcntl.fcntl(sparse, fcntl.F_ADD_SEALS, shm.SEALS)
    try:
        for serial in range(1, 17):
            socket.send_fds(mine.connection, [WORD.pack(serial, 1 << 44)], [sparse])
        assert its.take_in() and its.maps == {}
    finally:
        os.close(sparse)
    segment = Segment(4096)
    assert mine.give(segment) and its.view((segment.serial, 0, 4096), 4096).nbytes == 4096


@pytest.mark.parametrize("offset, nbytes, announced", [(-1, 8, 8), (4090, 8, 8), (1 << 60, 8, 8), (0, 4097, 4097), (0, 16, 8)])
def test_a_place_outside_its_segment_is_refused(
    ends: tuple[Channel, Channel], offset: int, nbytes: int, announced: int
) -> None:
    mine, its = ends
    segment = Segment(4096)
    assert mine.give(segment) and its.view((segment.serial, 0, 4096), 4096).nbytes == 4096
    with pytest.raises(ProtocolError):
        its.view((segment.serial, offset, announced), nbytes)


def test_one_peer_s_segment_cannot_take_the_place_of_another(ends: tuple[Channel, Channel]) -> None:
    """Two clients may use the same numbers, and one may use a number twice."""
    mine, its = ends
    other_mine, other_its = (Channel(s) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    pool = SegmentPool()
    place = placed(pool, mine, data(100, 1))
    false = Segment(ARENA)
    false.serial = place[0]
    false.view(0, 100)[:] = 9
    assert other_mine.give(false)
    assert its.view(place, 100)[0] == 1 and other_its.view(place, 100)[0] == 9
    mine.passed.clear()
    assert mine.give(false) and its.take_in() and its.view(place, 100)[0] == 1
    other_mine.close()
    other_its.close()


def test_a_worker_reads_and_takes_back_each_client_s_own_segments_alone(ends: tuple[Channel, Channel]) -> None:
    mine, its = ends
    other_mine, other_its = (Channel(s) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    memory = SharedMemory()
    memory.share("alice", its)
    memory.share("bob", other_its)
    place = placed(SegmentPool(), mine, data(100, 1))
    assert memory.load("alice", place, 100)[0][0] == 1
    with pytest.raises(ProtocolError):
        memory.load("bob", place, 100)
    lent = memory.lend("alice", memoryview(data(SMALL, 5)))
    assert lent is not None
    with pytest.raises(ProtocolError, match="not lent to this client"):
        memory.release("bob", lent[0])
    to_bob = memory.lend("bob", memoryview(data(SMALL, 6)))
    assert to_bob is not None and mine.view(lent, SMALL)[0] == 5 and other_mine.view(to_bob, SMALL)[0] == 6
    with pytest.raises(ProtocolError):
        memory.load("nobody", place, 100)
    memory.release("alice", lent[0])
    memory.drop("alice")
    memory.drop("bob")
    other_mine.close()


def test_a_peer_that_takes_nothing_in_stops_nobody(ends: tuple[Channel, Channel]) -> None:
    mine, its = ends
    segments = [Segment(4096) for _ in range(1000)]
    given = [s for s in segments if mine.give(s)]
    assert 0 < len(given) < 1000
    for segment in given:
        mine.drop(segment.serial)
    while not mine.give(segments[-1]):
        assert its.take_in()
    assert its.take_in()
    assert not mine.unsaid and its.maps.keys() == {segments[-1].serial}


def test_a_channel_of_a_process_with_many_descriptors_waits_for_its_peer() -> None:
    """`select.select` would raise: it takes no descriptors past 1023."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("no more than 1024 descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        high = socket.socket(fileno=fcntl.fcntl(near.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500))
    finally:
        near.close()
    channel = Channel(high)
    try:
        while channel._send(WORD.pack(1, 1), [], 0.0):
            pass
        assert channel.connection.fileno() >= 1500 and not channel._send(WORD.pack(1, 1), [], 0.01)
    finally:
        channel.close()
        far.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
