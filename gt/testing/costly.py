"""`python -m gt.testing.costly [CASE ...] [--workers N]`: messages of one client at its limits, to a
dispatcher's core with many workers and to a worker's core. Prints the CPU seconds of the longest step of each: for so long all
other clients wait."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from gt.dispatcher.core import Dispatcher
from gt.program.code import free
from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport import checks
from gt.transport import messages as m
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER

F = float32.code
PAIR = (F, 64, 4)
FULL, SPREAD = (m.KindDef(1 + i, "full", ((-3,),), ((64, 4), F), signal) for i, signal in enumerate(("", "rows")))
ADD, ROWS = m.KindDef(3, "add", (PAIR, PAIR), ()), {"mesh": None, "axes": [0], "workers": None}
SUM = m.KindDef(4, "sum", (PAIR,), ((0,), False))
MANY = checks.MESSAGE // (6 * checks.OPERANDS)  # instructions of OPERANDS ids that fit into one message
Messages = Iterator[Any]


def batch(serial: int, code: Iterable[tuple] = (), kinds: Iterable[m.KindDef] = (), **rest: Any) -> m.Batch:
    return m.Batch(serial, tuple(kinds), list(code), **rest)


def kind_of(op: str, ins: tuple, statics: tuple, number: int = 10) -> m.KindDef:
    return m.KindDef(number, op, ins, statics)


def reads(first: int) -> Messages:
    yield batch(2, gets=tuple((ticket, first, PAIR) for ticket in range(checks.READS)))


def instructions(first: int) -> Messages:
    yield batch(2, [(3, 10 + n, first, first) for n in range(checks.CODE)], ack=True)


def unknown_kinds(first: int) -> Messages:
    yield batch(2, [(999, 10 + n, first) for n in range(checks.CODE)])


def unknown_tensors(first: int) -> Messages:
    yield batch(2, [(3, 10 + n, 7, 7) for n in range(checks.CODE)])


def definitions(first: int) -> Messages:
    yield batch(2, (), [kind_of("add", ((F, 1 + n), (F, 1 + n)), (), 10 + n) for n in range(checks.DEFINITIONS)])


def used_definitions(first: int) -> Messages:
    """Each defined and used, so that workers prepare them too."""
    count = checks.DEFINITIONS // 4
    kinds = [kind_of("full", ((-3,),), ((1 + n,), F), 10 + n) for n in range(count)]
    yield batch(2, [(10 + n, 10 + n, 1.0) for n in range(count)], kinds)


def many_operands(first: int) -> Messages:
    many = kind_of("cat", (PAIR,) * checks.OPERANDS, (0,))
    yield batch(2, [(10, 10 + n, *[first] * checks.OPERANDS) for n in range(MANY)], [many])


def many_results(first: int) -> Messages:
    results = tuple(range(2, 2 + checks.OPERANDS))
    each = checks.OPERANDS
    yield batch(2, traces=(TraceDef(10, 1, [(3, r, 1, 1) for r in results], results),))
    yield batch(3, [(10, *range(100 + n * each, 100 + (n + 1) * each), first) for n in range(MANY)])


def partial_sums(first: int) -> Messages:
    """Partial results, each of which is looked for among the following instructions."""
    code: list[tuple] = [(4, 10 + n, first) for n in range(checks.CODE // 2)]
    relu = kind_of("exp", ((F, 4),), ())
    yield batch(2, [*code, *((10, 100_000 + n, 10 + n) for n in range(checks.CODE // 2 - 1))], [relu])


def long_trace(first: int) -> Messages:
    values = list(range(2, 2 + checks.TRACE))
    trace = TraceDef(10, 1, [*((3, v, v - 1, 1) for v in values), *map(free, values[:-1])], (values[-1],))
    yield batch(2, traces=(trace,))
    yield batch(3, [(10, 10, first)])
    yield batch(4, [(10, 11, first)])


def many_traces(first: int) -> Messages:
    body: list[tuple] = [(3, 2, 1, 1), *((3, 3 + k, 2 + k, 1) for k in range(100)), *map(free, range(2, 102))]
    traces = tuple(TraceDef(10 + n, 1, body, (102,)) for n in range(checks.BODY // len(body) - 1))
    yield batch(2, [(10 + n, 10 + n, first) for n in range(len(traces))], traces=traces)
    yield batch(3, drops=tuple(range(10, 10 + len(traces))))


def many_drops(first: int) -> Messages:
    yield batch(2, drops=tuple(range(1, checks.KNOWN)))


def forget(first: int) -> Messages:
    for serial in range(2, 10):
        count = checks.DEFINITIONS // 2
        first_kind = serial * count
        kinds = [kind_of("add", ((F, 1 + n), (F, 1 + n)), (), first_kind + n) for n in range(count)]
        yield batch(serial, (), kinds)
    for serial in range(10, 20):
        yield batch(serial, forget=serial)


def signals(first: int) -> Messages:
    yield m.Configure({f"s{n}": {"mesh": None, "axes": [0], "workers": list(range(60))} for n in range(checks.SIGNALS)})
    yield m.Configure({"s": {"mesh": [1] * 60_000, "axes": [0] * 1000, "workers": None}})


def question(first: int) -> Messages:
    yield m.Ask(1, "placement", [first, [[1] * 1000] * 60])
    yield m.Ask(2, "stats", [1] * 60_000)
    yield m.Ask(3, "network", [[1] * 1000] * 60)


def flat(first: int) -> Messages:
    """As many values as a message can hold."""
    yield m.Ask(1, "x", [[]] * 4_000_000)
    yield batch(2, [tuple([1] * 7_000_000)])


def long_settings(first: int) -> Messages:
    axes = tuple(range(checks.ITEMS - 10))
    for number, (op, statics) in enumerate((
        ("permute", (axes,)), ("sum", (axes, False)), ("reshape", ((1,) * len(axes),)), ("flip", (axes,)), ("expand", (axes,)),
        ("squeeze", (axes,)), ("pad", (axes, 0.0)), ("roll", (axes, axes)), ("index", (axes,)), ("einsum", ("ab," * 1300,)),
    )):  # fmt: skip
        yield batch(2 + number, (), [kind_of(op, (PAIR,), statics, 10 + number)])


def tensors(first: int) -> Messages:
    """As many tensors as a client may have; then it leaves."""
    for serial in range(2, 2 + checks.TENSORS // checks.CODE):
        yield batch(serial, [(1, serial * checks.CODE + n, 1.0) for n in range(checks.CODE)])
    yield m.Bye("")


CASES: dict[str, Callable[[int], Messages]] = {
    f.__name__: f
    for f in (
        reads, instructions, unknown_kinds, unknown_tensors, definitions, used_definitions, many_operands, many_results,
        partial_sums, long_trace, many_traces, many_drops, forget, signals, question, flat, long_settings, tensors,
    )
}  # fmt: skip


class LongestStep:
    """Steps of a core, and the CPU seconds of the longest."""

    def __init__(self) -> None:
        self.longest, self.count, self.of = 0.0, 0, ""

    def __call__(self, what: str, step: Callable[[], Any]) -> Any:
        gc.disable()  # memory of the search itself is no part of a step
        start = time.process_time()
        found = step()
        took = time.process_time() - start
        gc.enable()
        self.count += 1
        if took > self.longest:
            self.longest, self.of = took, what
        return found


def dispatched(case: Callable[[int], Messages], workers: int, spread: bool) -> tuple[LongestStep, list[m.Mail]]:
    """The dispatcher's steps for a case, and the mail for the first worker."""
    core, steps, mails = Dispatcher(), LongestStep(), []
    for i in range(workers):
        core.handle(m.Mail(f"w{i}", m.Join(m.VERSION, "", f"w{i}", "none", "cpu", "here", i, f"ipc://{i}")))
    core.handle(m.Mail("c", m.Hello(m.VERSION, "", "here", 1)))
    for i in range(workers):
        core.handle(m.Mail(f"w{i}", m.Attached(i, True, "c")))
    first = 2 if spread else 1
    made = batch(1, [(1, 1, 1.0), (2, 2, 1.0)] if spread else [(1, 1, 1.0)], (FULL, SPREAD, ADD, SUM))
    for message in (m.Configure({"rows": ROWS}), made):
        mails += [mail for mail in core.handle(m.Mail("c", message)) if mail.peer == "w0"]
    for message in case(first):
        data = m.encode(message)
        if len(data) > checks.MESSAGE:
            raise SystemExit(f"{case.__name__}: a message of {len(data)} bytes: the most are {checks.MESSAGE}")
        what = type(message).__name__
        said = steps(f"decode {what}", partial(m.decode, data, checks.MESSAGE))
        mails += [mail for mail in steps(what, partial(core.handle, m.Mail("c", said))) if mail.peer == "w0"]
        while core.tables.cut or (late := next(behind(core), None)) is not None:
            advance = core.advance if core.tables.cut else partial(core.handle, cast(m.Mail, late))
            mails += [mail for mail in steps(f"rest of {what}", advance) if mail.peer == "w0"]
    steps("departure", lambda: core.lose("c", "it left"))
    return steps, mails


def behind(core: Dispatcher) -> Iterator[m.Mail]:
    """Workers that report all of the client's work as executed, where the client waits for them."""
    client = core.tables.clients.get("c")
    if client is not None and client.ahead:
        for i, sent in client.sent.items():
            if client.executed.get(i, 0) < sent:
                yield m.Mail(f"w{i}", m.Progress("c", sent))


def executed(mails: list[m.Mail], engine: str) -> LongestStep:
    """A worker's steps for its mail."""
    worker, steps = Worker(make(engine)), LongestStep()
    worker.handle(m.Mail(DISPATCHER, m.Welcome("w0", 0)))
    for mail in mails:
        steps(type(mail.message).__name__, partial(worker.handle, m.Mail(DISPATCHER, mail.message)))
    steps("Drop", lambda: worker.handle(m.Mail(DISPATCHER, m.Drop("c"))))
    return steps


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The longest step that one client's messages can cause.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"which: {', '.join(CASES)} (all)")
    parser.add_argument("--workers", type=int, default=64, help="workers of the dispatcher with spread tensors (64)")
    parser.add_argument("--engine", default="numpy")
    args = parser.parse_args(argv)
    for name in args.cases or CASES:
        for workers, spread in ((1, False), (args.workers, True)):
            steps, mails = dispatched(CASES[name], workers, spread)
            line = f"{name:<18} {workers:>3} workers: dispatcher {steps.longest:6.3f} s ({steps.of}, of {steps.count} steps)"
            if not spread:
                there = executed(mails, args.engine)
                line += f", worker {there.longest:6.3f} s ({there.of}, of {there.count})"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
