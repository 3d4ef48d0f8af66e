"""The dispatcher's choices for workers on several hosts: bytes stay within one host if possible."""

from __future__ import annotations

import pytest

from gt.dispatcher.drain import elsewhere, moving
from gt.dispatcher.hosts import CROSSING, ONE, Hosts
from gt.dispatcher.redistribute import cost
from gt.dispatcher.tables import WorkerState
from gt.ops import Kind
from gt.spec import REPLICATE, Layout, Mesh, Partial, Shard, Spec, float32

SPEC = Spec((64, 64), float32)


@pytest.fixture
def hosts() -> Hosts:
    """Two hosts of two workers each."""
    made = Hosts()
    for worker, host in enumerate("aabb"):
        made.add(worker, host)
    return made


def sources(layout: Layout, to: Layout, hosts: Hosts) -> set[int]:
    """From whom workers take the pieces that they lack."""
    plan = moving(SPEC, layout, to, hosts)
    takes = [extra.settings["takes"] for extra in plan.extra if isinstance(extra, Kind) and "takes" in extra.settings]
    return {source for each in takes for source, *_ in each}


def test_a_piece_is_taken_from_a_worker_of_the_same_host(hosts: Hosts) -> None:
    copies = Layout(Mesh((2,), (0, 2)), (REPLICATE,))
    assert sources(copies, Layout.on(3), ONE) == {0} and sources(copies, Layout.on(3), hosts) == {2}
    assert sources(copies, Layout.on(1), hosts) == {0}
    assert hosts.nearest(3, [0, 1], 5) == 1 and hosts.nearest(3, [2, 0, 1], 5) == 2 and hosts.nearest(0, [1, 0], 0) == 0


def test_bytes_that_cross_between_hosts_cost_more(hosts: Hosts) -> None:
    on_zero, nbytes = Layout.on(0), SPEC.nbytes
    assert cost(SPEC, on_zero, Layout.on(1), hosts) == nbytes == cost(SPEC, on_zero, Layout.on(1))
    assert cost(SPEC, on_zero, Layout.on(2), hosts) == nbytes * CROSSING
    copies = Layout(Mesh((2,), (0, 2)), (REPLICATE,))
    assert cost(SPEC, copies, Layout.on(3), hosts) == nbytes, "one of its host has it"
    grid = Mesh((2, 2), (0, 1, 2, 3))  # the first dimension goes from host to host
    across = Layout(grid, (Partial("sum"), REPLICATE))
    inside = Layout(grid, (REPLICATE, Partial("sum")))
    whole = Layout(grid, (REPLICATE, REPLICATE))
    assert cost(SPEC, across, whole) == cost(SPEC, inside, whole) == cost(SPEC, inside, whole, hosts)
    assert cost(SPEC, across, whole, hosts) == CROSSING * cost(SPEC, inside, whole, hosts)
    rows = Layout(Mesh((4,), (0, 1, 2, 3)), (Shard(0),))
    quarter = nbytes // 4
    assert cost(SPEC, rows, Layout.on(0), hosts) == quarter + 2 * quarter * CROSSING


def test_a_measured_bandwidth_replaces_the_estimate(hosts: Hosts) -> None:
    assert hosts.crossing == CROSSING
    assert hosts.keep([["a", "a", 8e9], ["b", "b", 10e9], ["a", "b", 1e9]]) == "" and hosts.crossing == 9.0
    assert hosts.keep([["a", "a", 1e9], ["a", "b", 5e9]]) == "" and hosts.crossing == 1.0, "never cheaper than inside"
    for wrong in (None, [], 3, [["a", "c", 1.0]], [["a", "b", 0]], [["a", "b"]], ["a"]):
        assert "expected" in hosts.keep(wrong)
    assert hosts.crossing == 1.0, "a measurement that cannot be kept changes nothing"


def test_the_tensors_of_a_worker_that_leaves_stay_on_its_host(hosts: Hosts) -> None:
    def state(index: int, held: int) -> WorkerState:
        return WorkerState(f"p{index}", index, f"w{index}", "numpy", "cpu", "", 0, "", bytes=held)

    staying = [state(1, 1000), state(2, 0), state(3, 0)]
    assert elsewhere(Layout.on(0), 0, staying) == Layout.on(2)
    assert elsewhere(Layout.on(0), 0, staying, hosts) == Layout.on(1)


class Counted(dict):
    """Counts how often a value is looked up."""

    looked_up = 0

    def get(self, key: object, default: object = None) -> object:
        self.looked_up += 1
        return super().get(key, default)


def test_the_cost_of_a_move_takes_work_in_proportion_to_the_workers() -> None:
    found = {}
    for workers in (64, 256):
        hosts, mesh = Hosts(), Mesh((workers,), tuple(range(workers)))
        for worker in range(workers):
            hosts.add(worker, f"host{worker // 8}")
        hosts.of = Counted(hosts.of)
        cost(Spec((workers, workers), float32), Layout(mesh, (Shard(0),)), Layout(mesh, (Shard(1),)), hosts)
        found[workers] = hosts.of.looked_up
    assert found[256] == 4 * found[64] <= 3 * 256
