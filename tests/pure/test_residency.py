"""Which buffers go to host memory when a device is full, and the counts of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gt.worker.residency import SLACK, Buffer, Residency

CLIENTS = ["a", "b", "c", "d"]
sizes = st.dictionaries(st.sampled_from(CLIENTS), st.lists(st.integers(0, 100), max_size=6))


def buffers_of(held: dict[str, list[int]]) -> dict[str, list[Buffer]]:
    return {client: [Buffer(client, n, nbytes) for n, nbytes in enumerate(each)] for client, each in held.items()}


@given(sizes, st.permutations(CLIENTS), st.integers(1, 500), st.integers(0, 600), st.integers(0, 200))
def test_the_least_recently_used_clients_make_room_first_and_no_more_than_needed(
    held: dict[str, list[int]], order: list[str], need: int, host: int, already: int
) -> None:
    r = Residency(device=320, host=host, least=5)
    r.counted(320, already)
    buffers = buffers_of(held)
    chosen = r.choose(need, order, buffers)
    freed = sum(b.nbytes for b in chosen)
    assert len(set(chosen)) == len(chosen) and all(b.nbytes >= 5 for b in chosen)
    assert freed <= max(0, host - already), "the host takes no more than it has"
    assert [order.index(b.client) for b in chosen] == sorted(order.index(b.client) for b in chosen)
    if chosen:
        assert freed - chosen[-1].nbytes < need + 320 // SLACK, "the last one was needed"
    left = [b for each in buffers.values() for b in each if b.nbytes >= 5 and b not in chosen]
    if freed < need + 320 // SLACK:
        assert all(b.nbytes > host - already - freed for b in left), "too little was chosen only where nothing else fits"
    last = order.index(chosen[-1].client) if chosen else 0
    for client in order[:last]:
        assert all(b.nbytes > host - already - freed for b in left if b.client == client), "whom others overtook had no more"


@given(st.lists(st.tuples(st.sampled_from(["make", "out", "back", "count"]), st.integers(1, 50)), max_size=60))
def test_what_is_counted_is_never_less_than_what_lies_on_the_device(steps: list[tuple[str, int]]) -> None:
    r = Residency(device=400, host=400)
    r.counted(0, 0)
    device: list[int] = []
    host: list[int] = []
    for step, nbytes in steps:
        if step == "make" and r.fits(nbytes):
            device.append(nbytes)
            r.on_device += nbytes
        elif step == "out" and device:
            host.append(device.pop(0))
            r.moved_out(host[-1])
        elif step == "back" and host and r.fits(host[0]):
            device.append(host.pop(0))
            r.moved_back(device[-1])
        elif step == "count":
            r.counted(sum(device), sum(host))
        assert sum(device) <= r.on_device <= r.device and sum(host) == r.on_host
    stats = r.stats()
    assert stats["moved_to_host"] - stats["moved_back"] == len(host)
    assert stats["bytes_to_host"] - stats["bytes_back"] == sum(host)


def test_without_a_limit_everything_fits_and_an_uncounted_device_fits_nothing() -> None:
    assert Residency(device=0, host=10).fits(1 << 60) and Residency(device=0).missing(1 << 60) == 0
    r = Residency(device=100, host=0)
    assert not r.fits(1), "what ran before was not counted"
    r.counted(60, 0)
    assert r.fits(40) and not r.fits(41) and r.missing(41) == 1
