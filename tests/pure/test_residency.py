"""The buffers that move to host memory when a device is full, and their counts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from weakref import finalize, ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gt.spec import float32
from gt.transport.messages import KindDef, Mail, Run, Welcome
from gt.worker import host_memory
from gt.worker.client_turns import ClientTurns
from gt.worker.client_values import Moved, Poisoned
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.graph_numbers import FEW, SLOTS, GraphNumbers, Rises
from gt.worker.fair_queue import SLICE
from gt.worker.host_memory import _needs
from gt.worker.peer_names import DISPATCHER
from gt.worker.programs import compile
from gt.worker.programs.compile import TRACE, Executable
from gt.worker.quotas import growth
from gt.worker.residency import SLACK, DeviceBuffer, Residency

CLIENTS = ["a", "b", "c", "d"]
sizes = st.dictionaries(st.sampled_from(CLIENTS), st.lists(st.integers(0, 100), max_size=6))


def buffers_of(held: dict[str, list[int]]) -> dict[str, list[DeviceBuffer]]:
    return {client: [DeviceBuffer(client, n, nbytes) for n, nbytes in enumerate(each)] for client, each in held.items()}


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
def test_the_counted_bytes_are_never_less_than_the_device_s(steps: list[tuple[str, int]]) -> None:
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
    assert not r.fits(1), "calls before this one were not counted"
    r.counted(60, 0)
    assert r.fits(40) and not r.fits(41) and r.missing(41) == 1


BLOCK = (float32.code, 512, 512)  # 1 MB
FILL = KindDef(1, "full", ((-3,),), ((512, 512), float32.code))
DOUBLE = KindDef(2, "mul", (BLOCK, (-3,)), ())
MB = 1 << 20


class Recording:
    """Stands for a CUDA graph, whose results cannot be moved before it is given up."""

    recorded = True

    def __init__(self) -> None:
        self.held = True

    def release(self) -> bool:
        held, self.held = self.held, False
        return held


def shared_worker(device: int, host: int = 64 * MB) -> Worker:
    worker = Worker(make("numpy"))
    worker.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    worker.host.limit(device, host)
    return worker


def fill(worker: Worker, client: str, *ids: int) -> None:
    worker.handle(Mail(DISPATCHER, Run(client, 1, (FILL, DOUBLE), [(1, id, float(id)) for id in ids])))


def test_a_recording_is_given_up_before_the_tensors_that_it_knows_are_moved() -> None:
    worker, recording = shared_worker(4 * MB), Recording()
    fill(worker, "idle", 1, 2, 3)
    program = Executable.__new__(Executable)
    program.faster = recording
    worker.spaces["idle"].kinds[99] = (TRACE, None, program)
    to_host = worker.engine.to_host
    worker.engine.to_host = lambda arrays: None if recording.held else to_host(arrays)  # type: ignore[method-assign]
    fill(worker, "busy", 1, 2, 3)
    assert not recording.held and worker.host.residency.out > 0 and worker.host.residency.refused == 0
    assert [float(a[0, 0]) for a in worker.spaces["busy"].table.values()] == [1.0, 2.0, 3.0]


def test_workspaces_of_libraries_are_no_tensors_of_clients() -> None:
    worker = shared_worker(4 * MB)
    worker.engine.allocated = lambda: 320 * MB  # type: ignore[method-assign,assignment,return-value]
    fill(worker, "idle", 1, 2, 3)
    fill(worker, "busy", 1, 2, 3)
    assert worker.host.residency.out > 0 and worker.host.residency.refused == 0 and not worker.executor.failures


def test_memory_that_recordings_keep_is_counted_once_and_those_of_who_left_are_collected() -> None:
    worker = shared_worker(4 * MB)
    fill(worker, "a", 1, 2)
    a = worker.spaces["a"].table[1]
    kept = {-1: MB, worker.engine.buffer(a)[0]: a.nbytes}
    worker.engine.recordings = lambda: kept  # type: ignore[method-assign]
    worker.host._count()
    assert worker.host.residency.on_device == 3 * MB

    class Left:
        """A program and its recording, which know one another."""

        def __init__(self) -> None:
            self.own = self
            finalize(self, kept.pop, -2)

    kept[-2] = 4 * MB
    Left()
    fill(worker, "b", 1, 2)
    assert -2 not in kept and worker.host.residency.refused == 0


def test_a_tensor_without_room_on_the_device_returns_when_others_have_left() -> None:
    worker = shared_worker(4 * MB)
    fill(worker, "a", 1, 2)
    fill(worker, "b", 1, 2, 3)
    values, failed = worker.spaces["a"], []
    moved = next(id for id, array in values.table.items() if type(array) is Moved)
    back = values.table[moved].copy.back

    def full_once() -> list:
        if not failed:
            failed.append(1)
            raise RuntimeError("CUDA out of memory")
        return back()

    values.table[moved].copy.back = full_once
    worker.handle(Mail(DISPATCHER, Run("a", 2, (), [(2, 9, moved, 2.0)])))
    assert failed and values.table[9][0, 0] == 2.0 * moved and worker.executor.failures == 0


def test_a_device_that_an_error_has_spoilt_is_told_of_where_memory_is_moved() -> None:
    worker = shared_worker(4 * MB)
    fill(worker, "idle", 1, 2, 3)

    def assertion(arrays: list) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    worker.engine.to_host, worker.engine.poisoned = assertion, lambda error: True  # type: ignore[method-assign]
    with pytest.raises(Poisoned, match="unusable: CUDA error"):
        fill(worker, "busy", 1, 2, 3)


ADD = KindDef(3, "add", (BLOCK, BLOCK), ())


def test_operands_of_a_run_that_was_left_before_its_next_instruction_make_room_for_others() -> None:
    """Each of five busy clients is left with two operands before it: all of them would fill the device twice."""
    worker, now = shared_worker(5 * MB), iter(range(10000))
    turns = ClientTurns(worker, lambda: float(next(now)), lambda: True, lambda: False, lambda mails: None)
    code = [(1, 1, 1.0), (1, 2, 2.0), (3, 3, 1, 2), (3, 4, 3, 2), (3, 5, 4, 1)]
    for client in "abcde":
        turns.put(client, Run(client, 1, (FILL, ADD), code))
    most = 0
    while (client := turns.next()) is not None:
        turns.serve(client)
        most = max(most, len(worker.preempted))
    assert most == 5 and turns.queue.preemptions > 5, "all of them were left at a time"
    assert worker.host.residency.refused == worker.executor.failures == 0 and worker.host.residency.back > 0
    for values in worker.spaces.values():
        found = {id: a.array if type(a) is Moved else a for id, a in values.table.items()}
        assert [float(found[id][0, 0]) for id in (3, 4, 5)] == [3.0, 5.0, 6.0]


def test_clients_that_do_not_fit_together_move_their_memory_less_often_than_they_take_turns() -> None:
    worker, now = shared_worker(4 * MB), [0.0]

    def clock() -> float:
        now[0] += SLICE
        return now[0]

    def slowly(arrays: list) -> Any:
        now[0] += 10 * SLICE
        return to_host(arrays)

    to_host, worker.engine.to_host, worker.engine.clock = worker.engine.to_host, slowly, clock  # type: ignore[method-assign]
    turns = ClientTurns(worker, clock, lambda: True, lambda: False, lambda mails: None)
    for client in "ab":
        turns.put(client, Run(client, 1, (FILL, ADD), [(1, 1, 1.0), (1, 2, 2.0)] + [(3, 3, 1, 2)] * 100))
    small = Run("c", 1, (FILL, ADD), [(1, 1, 1.0)])
    served: list[str] = []
    while (client := turns.next()) is not None:
        turns.serve(client)
        served.append(client)
        if len(served) == 20:
            turns.put("c", small)
    assert len(served) > 50 and worker.host.residency.back < len(served) / 4, (len(served), worker.host.residency.back)
    assert abs(turns.stats()["shares"]["a"]["turns"] - turns.stats()["shares"]["b"]["turns"]) < 20
    assert "c" in served[20:22], "who has all its memory there is served at once"


def test_the_tensors_that_a_graph_watches_before_it_is_recorded_take_no_memory() -> None:
    program = SimpleNamespace(inputs=3, result_count=1, dies=(), program=SimpleNamespace(instructions=()))
    graph = Graph(program, SimpleNamespace(graphs=set()))
    weights, parameter = torch.ones(4), torch.ones(4)
    gone = ref(parameter)
    graph._watch({1: weights, 2: parameter, 3: torch.ones(1)}, (1, 2, 3), (4,))
    del parameter
    assert gone() is None and graph.held() == []
    graph._watch({1: weights, 4: torch.ones(4), 3: weights}, (1, 4, 3), (5,))
    assert graph.fixed == [True, False, False] and graph.links == {1: 0} and not graph.release()


def test_the_bytes_that_a_call_adds_are_computed_once_of_hundreds_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(compile, "growth_of", lambda ready: asked.append(1) or 5)
    program = Executable.__new__(Executable)
    program.faster = Recording()
    assert [growth(program), growth(program), _needs(program)] == [5, 5, 5] and len(asked) == 1


def test_what_a_kind_needs_is_computed_at_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    core, asked = Worker(make("numpy")), []
    core.host.limit(1 << 30, 1 << 30)
    monkeypatch.setattr(host_memory, "growth", lambda ready: asked.append(ready) or 4096)
    core.handle(Mail(DISPATCHER, Run("c", 1, (KindDef(1, "full", ((-3,),), ((2,), float32.code)),), [(1, 1, 5.0)])))
    before, counted = len(asked), core.host.residency.on_device
    for n in range(2, 6):
        core.handle(Mail(DISPATCHER, Run("c", n, (), [(1, n, 5.0)])))
    assert before and len(asked) == before and core.host.residency.on_device == counted + 4 * 4096


def test_whole_numbers_that_rise_by_the_same_at_each_call_are_counted_up_by_the_graph() -> None:
    rises = Rises()
    for n in range(3):
        rises.see((n, 10 * n, n * n, 0.5 * n, 4))
    assert rises.each == (1, 10, 0, 0, 0)
    given = GraphNumbers((3, 30, 9, 1.5, 4), torch.device("cpu"), rises.each)
    filled = []
    copy, given._copy = given._copy, lambda *a: filled.append(1) or copy(*a)  # type: ignore[method-assign]
    for numbers in ((3, 30, 9, 1.5, 4), (4, 40, 9, 1.5, 4), (5, 50, 9, 1.5, 4), (7, 60, 9, 1.5, 4), (8, 70, 9, 2.5, 4)):
        given.give(numbers)
        assert [hole.item() for hole in given.holes] == list(numbers)
        given.rise()  # as the graph does at its end
        given.advance()
    assert len(filled) == 1 and given.slot == 3, "only inputs that do not lie there are filled in"


def test_a_zero_of_the_other_sign_is_given_to_a_graph() -> None:
    for more in (0, FEW):
        given = GraphNumbers((0.0, 1, True, *[0.0] * more), torch.device("cpu"), (0, 1, 0, *[0] * more))
        for n, zero in enumerate((0.0, -0.0, 0.0, -0.0, -0.0)):
            given.give((zero, n, True, *[zero] * more))
            assert all(
                math.copysign(1.0, hole.item()) == math.copysign(1.0, zero) for hole in (given.holes[0], *given.holes[3:])
            )
            given.rise()
            given.advance()
            assert n < 4 or given.slot == 0, "a number that lies there is not given again"


@pytest.mark.parametrize("more", [0, FEW])
def test_numbers_of_a_graph_are_where_it_reads_them_at_each_call(more: int) -> None:
    given = GraphNumbers((1.5, 2, 3.25, *[7] * more), torch.device("cpu"))
    for n in range(2 * SLOTS + 1):
        numbers = (1.5 * n, n, 3.25, *[7 + n] * more)
        given.give(numbers)
        slot = given.slot
        given.give(numbers)
        assert [hole.item() for hole in given.holes] == list(numbers) and given.slot == slot, (
            "an input that lies there is not copied"
        )
        assert [hole.dtype for hole in given.holes[:3]] == [torch.float64, torch.int64, torch.float64]
