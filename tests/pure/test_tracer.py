"""The tracer's boundaries."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from itertools import count
from typing import Any

import pytest

from gt.client.questions import MOST, OFTEN
from gt.client.tracer import MARK, Tracer
from gt.ops import infer, row
from gt.program.code import FREE
from gt.spec import Spec, float32

X = Spec((2,), float32)
LOAD, ADD, MUL = 1, 2, 3


def made() -> Tracer:
    load = row("load")
    whole = {"shape": (2,), "whole": (2,), "start": (0,), "dtype": float32.code}
    kinds = {
        LOAD: infer(load, (int, int, int), tuple(whole[n] for n in load.statics)),
        ADD: infer(row("add"), (X, X), ()),
        MUL: infer(row("mul"), (X, X), ()),
    }
    return Tracer(count(100).__next__, kinds)


def step(first: int, weight: int) -> tuple[list, list, int]:
    """Bytes loaded, then six ops on them and a weight; the weight's new value is the last result."""
    load = [(MARK,), (LOAD, first, 7, first, 8), (MARK,)]
    ops, last = [], first
    for i in range(6):
        ops.append((ADD if i % 2 else MUL, first + 1 + i, last, weight))
        if i:
            ops.append((FREE, last))
        last = first + 1 + i
    return load, [*ops, (FREE, first), (FREE, weight), (MARK,)], last


def run(tracer: Tracer, steps: int, cuts: bool) -> list:
    """The instructions sent for some steps; with `cuts`, a batch ends right behind the bytes."""
    sent, weight, first = [], 1, 10
    for _ in range(steps):
        load, ops, weight = step(first, weight)
        for batch in (load, ops) if cuts else (load + ops,):
            sent += tracer.fold(batch, False, False)
        first += 10
    return sent + tracer.fold([], True, False)


def test_bytes_are_no_part_of_a_trace_wherever_a_batch_ends() -> None:
    for cuts in (False, True):
        tracer = made()
        sent = run(tracer, 8, cuts)
        definitions, _ = tracer.take()
        assert definitions and all(ins[0] != LOAD for d in definitions for ins in d.body)
        assert tracer.hits >= 4, "a step whose data is loaded anew is replayed all the same"
        assert sum(ins[0] == LOAD for ins in sent) == 8


def test_frees_behind_a_boundary_belong_to_the_stretch_before_it() -> None:
    tracer = made()
    weight, first = 1, 10
    for _ in range(8):
        load, ops, following = step(first, weight)
        tracer.fold([*load, *ops[:-3], (MARK,)], False, False)  # the batch ends at the boundary
        tracer.fold([(FREE, first), (FREE, weight)], False, False)  # the frees come with the next
        weight, first = following, first + 10
    tracer.fold([], True, False)
    definitions, _ = tracer.take()
    assert tracer.hits >= 4 and all(d.dies for d in definitions)


def test_only_traces_whose_second_op_comes_hold_instructions_back() -> None:
    tracer = made()
    run(tracer, 8, False)
    ((trace,),) = tracer.traces.values()
    assert trace.tokens[:2] == [MUL, ADD]
    misses = trace.misses
    assert tracer.fold([(MARK,), (MUL, 1000, 1, 1)], False, False) == []  # the trace may begin here
    others = [(FREE, 2), (MUL, 1001, 1000, 1)]
    assert tracer.fold(others, False, False) == [(MUL, 1000, 1, 1), *others]
    assert trace.misses == misses


class Nothing(set):
    """Remembers nothing."""

    def add(self, item: object) -> None: ...


@pytest.mark.parametrize("seed", range(12))
def test_batches_that_come_again_are_sent_as_if_they_had_not(seed: int) -> None:
    draw, tracers, used = random.Random(seed), (made(), made()), Counter[bool]()
    plain, quick = tracers
    plain.repeats.lengths = Nothing()
    fold = quick.repeats.fold

    def counted(*args: Any) -> list[tuple] | None:
        out = fold(*args)
        used[out is not None] += 1
        return out

    quick.repeats.fold = counted  # type: ignore[method-assign]
    weight, first = 1, 10
    for _ in range(250):
        load, ops, last = step(first, weight)
        way = draw.choice(
            ["step", "step", "step", "step", "one", "nothing", "no read", "swapped", "late", "question", "question"]
        )
        if way == "question":
            batch, last = [(ADD, first, 1, 1), (MUL, first + 1, first, 1), (FREE, first)], weight
        elif way == "one":
            batch, last = [(ADD, first, weight, weight), *draw.choice([[], [(FREE, 2)]])], weight
        elif way == "nothing":
            batch, last = [], weight
        elif way == "swapped":
            batch = [*load, *((*ins[:2], *reversed(ins[2:])) if ins[0] == ADD else ins for ins in ops)]
        elif way == "late":
            batch = [*load, *ops[:-3], (FREE, weight), (FREE, first), (MARK,)]
        else:
            batch = load + ops
        read = way != "no read"
        sent = [tracer.fold(list(batch), read, read) for tracer in tracers]
        assert sent[0] == sent[1] and plain.take() == quick.take()
        assert (plain.hits, plain.saved, plain.early.before, plain.early.last, plain.early.calls) == (
            quick.hits, quick.saved, quick.early.before, quick.early.last, quick.early.calls
        )  # fmt: skip
        weight, first = last, first + 10
    assert used[True] > 20


def test_a_tracer_and_its_stretches_end_without_the_collector_of_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        tracer = made()
        run(tracer, 12, cuts=False)
        assert tracer.hits and tracer.seen
        end = weakref.ref(tracer)
        del tracer
        assert end() is None
    finally:
        gc.enable()


def question(first: int, of: int) -> list[tuple]:
    return [(FREE, first - 1), (MUL, first, of, of), (ADD, first + 1, first, of), (FREE, first)]


def ask(tracer: Tracer, times: int, ids: Any, of: int = 1) -> list[list[tuple]]:
    """The batches sent for a question that is asked so often."""
    return [tracer.fold(question(next(ids) * 2, of), True, True) for _ in range(times)]


def test_a_question_that_comes_often_is_one_call() -> None:
    tracer, ids = made(), count(5)
    sent = ask(tracer, OFTEN, ids)
    assert all(len(batch) == 4 for batch in sent) and not tracer.take()[0], "one that came a few times is sent as it is"
    ask(tracer, 2, ids)
    [definition], _ = tracer.take()
    [batch] = ask(tracer, 1, ids)
    last = next(ids) * 2
    assert definition.body == [(MUL, 2, 1, 1), (ADD, 3, 2, 1), (FREE, 2)]
    assert batch == [(FREE, last - 3), (definition.number, last - 1, 1)]
    assert ask(tracer, 5, count(100))[-1] == [(FREE, 207), (definition.number, 209, 1)], "known batches are sent the same way"
    assert tracer.questions.traces == tracer.found == 1


def test_a_question_is_called_as_a_whole_alone() -> None:
    tracer, ids = made(), count(5)
    ask(tracer, 2 * OFTEN, ids)
    tracer.take()
    first = next(ids) * 2
    longer = [*question(first, 1), (MUL, first + 2, first + 1, 1)]
    assert tracer.fold(longer, True, True) == longer, "the beginning of another stretch is not a question"
    assert tracer.hits == OFTEN - 1


def test_without_a_read_a_few_ops_are_no_trace() -> None:
    tracer = made()
    for n in range(3 * OFTEN):
        tracer.fold([*question(10 + 2 * n, 1), (MARK,)], True, False)
    assert tracer.found == 0 and not tracer.questions.times


def test_so_many_questions_become_traces_and_one_that_fits_none_is_let_be() -> None:
    tracer, ids = made(), count(5)
    tracer.questions.traces = MOST
    ask(tracer, 3 * OFTEN, ids)
    assert tracer.found == 0 and tracer.repeats.known, "its batch is known"
    tracer, ids = made(), count(5)
    for n in range(3 * OFTEN):  # two topologies in turns
        first = next(ids) * 3
        tracer.fold([(MUL, first, 1, 1), (ADD, first + 1, *(first, 1)[:: 1 if n % 2 else -1])], True, True)
    assert tracer.found <= 2 and tracer.repeats.known


def test_a_question_to_cpus_alone_is_no_trace() -> None:
    tracer, ids = made(), count(5)
    tracer.questions.pay = lambda: False
    ask(tracer, 3 * OFTEN, ids)
    assert tracer.found == 0 and tracer.repeats.known
