"""Messages of a hostile or faulty client: recorded messages of real sessions with changes. Most are well formed, so that they
pass the first checks. The same seed gives the same messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

from msgspec.structs import replace

import gt
from gt.ops import TABLE, Row, infer
from gt.ops.table import spec_out
from gt.program.wire import TraceDef
from gt.spec import DTYPES, Spec
from gt.testing.cluster import Cluster, cluster
from gt.testing.fuzz_random import FuzzRandom
from gt.transport import messages as m

FAR = (1 << 47, 1 << 62, (1 << 63) - 1, -(1 << 63))  # sizes that fail at once, without an allocation
PROGRAMS = 7  # recorded sessions; the others are uses of one op each
SPREAD = slice(4, 7)  # the recorded sessions with tensors on several workers, whose programs hold collectives
GROUPS = ((0, 1), (1, 0), (0, 1, 2), (0,), (1, 2), (0, 0), (), (7, 1 << 40))
AGAIN = 12  # further uses of an op in its session
OFTEN = 0.8  # share of these that are changed
TEXTS = ("", "s", "sum", "none", "placement", "x" * 300, "\n", "é")


def record(workers: int = 2) -> list[list[m.Message]]:
    """The messages of real clients, a list for each program."""
    found: list[list[m.Message]] = []
    with cluster(workers):
        _trained()  # the first backward pass of a process defines some kinds twice, later ones do not
    for program in (_loop, _trained, _shapes, _loaded, _sharded, _trained_on_all, _moved):
        ticks = count(0.0, 1e-6)  # its clock: messages may depend on the time that answers take
        with cluster(workers, shares=program is not _loaded, clock=partial(next, ticks)) as made:
            found.append(_recorded(made, program))
    return found + [session for row in TABLE.values() for session in _uses(row)]


def _uses(row: Row) -> Iterator[list[m.Message]]:
    """A session for each sample of an op: it creates the operands, on one worker or sharded over all, applies the op and reads
    its results; then it applies the op again, as the same kind or another."""
    cut = m.Configure({"rows": {"mesh": None, "axes": [0], "workers": None}})
    for operands, settings in row.tries if not row.collective else ():
        values = [getattr(o, "spec", o) for o in operands]
        ins = tuple(o if isinstance(o, (Spec, type)) else type(o) for o in values)
        kind = infer(row, ins, tuple(settings[s] for s in row.statics))
        makes = [
            m.KindDef(i + 1, "full", ((-2,),), (spec.shape, spec.dtype.code), signal)
            for i, spec in enumerate(values) if isinstance(spec, Spec) for signal in ("rows" if len(row.name) % 2 else "",)
        ]  # fmt: skip
        code: list[Any] = [(k.number, k.number, 1) for k in makes]
        names = [i + 1 if isinstance(v, Spec) else (v(1) if isinstance(v, type) else v) for i, v in enumerate(values)]
        session: list[m.Message] = [cut]
        number = 40
        for n in range(1 + AGAIN):
            defined = [m.kind_out(number := 40 + n, kind)] if n % 3 == 0 else []
            results = tuple(range(100 + n * len(kind.outs), 100 + (n + 1) * len(kind.outs)))
            code.append((number, *results, *names))
            reads = tuple((id, id, spec_out(spec)) for id, spec in zip(results, kind.outs))
            session.append(m.Batch(1 + n, (*makes, *defined), code, reads, n % 3 != 1))
            makes, code = [], []
        yield session


def _recorded(made: Cluster, program: Any) -> list[m.Message]:
    kept: list[m.Message] = []
    post = made.hub.post

    def seen(sender: str, mail: m.Mail) -> None:
        if sender == "c0" and mail.peer == "dispatcher":
            kept.append(mail.message)
        post(sender, mail)

    made.hub.post = seen  # type: ignore[method-assign]
    gt.manual_seed(0)  # a session's own seed is another in each process
    program()
    made.settle()
    return kept


def _loop() -> None:
    """A stretch that repeats, so that traces are defined and called."""
    x, a = gt.ones(3, 4), gt.full((3, 4), 0.5)
    for _ in range(12):
        y = (x * a + 1.0).exp() - x
        y.sum().item()


def _sharded() -> None:
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    with gt.signal.context("rows"):
        w = gt.randn(4, 5)
        for _ in range(14):
            y = (w @ w.T).softmax(1)
            y = (y * 0.5 + y).sum(0)
            y.numpy()
    (w + 1).max().item()


def _trained_on_all() -> None:
    """Steps whose trace holds the sums of gradients, which are collectives."""
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    with gt.signal.context("rows"):
        x = gt.randn(6, 4)
    _trained(x, 14)


def _moved() -> None:
    """Tensors from one layout to another: gathered, cut, copied and exchanged."""
    layouts = {
        "rows": gt.ShardConfig(axis=0), "columns": gt.ShardConfig(axis=1), "turned": gt.ShardConfig(axis=0, workers=[1, 0]),
        "copies": gt.ShardConfig(replicated=True), "one": gt.ShardConfig(axis=0, workers=[1]),
    }  # fmt: skip
    for name, shard in layouts.items():
        gt.register_config(name, gt.SignalConfig(shard=shard))
    with gt.signal.context("rows"):
        x = gt.ones(4, 6) * 0.5
    for _ in range(4):
        for name in layouts:
            with gt.signal.context(name):
                y = gt.full((6, 4), 2.0)
                z = x @ y + gt.ones(4, 4)
            x = (z @ z.T).sum(0).reshape(4, 1) * 0.0 + x
            (x[1:] + x[:-1]).max(1).values.tolist()


def _trained(x: gt.Tensor | None = None, steps: int = 3) -> None:
    model = gt.nn.Sequential(gt.nn.Linear(4, 3), gt.nn.ReLU(), gt.nn.Linear(3, 2))
    optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
    x = gt.ones(5, 4) if x is None else x
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        loss.item()


def _shapes() -> None:
    x = gt.arange(24).reshape(2, 3, 4).float()
    parts = [x[:, 1:], x.transpose(0, 2), gt.cat([x, x], 1), x[0].sort()[0], x.cumsum(1), x.argmax(2), x > 3]
    image = gt.nn.functional.conv2d(gt.ones(1, 2, 5, 5), gt.ones(3, 2, 3, 3), padding=1)
    for part in (*parts, gt.nn.functional.max_pool2d(image, 2), gt.where(x > 2, x, -x), gt.rand(3)):
        part.tolist()


def _loaded() -> None:
    """Uploads, in a cluster without shared memory."""
    for n in (2, 5):
        (gt.tensor([float(i) for i in range(n)]) * 2).tolist()


class Hostile:
    """Changes messages. `message()` returns the next one of a client."""

    def __init__(self, seed: int, sessions: list[list[m.Message]], spread: bool = False) -> None:
        self.random, self.sessions = FuzzRandom(seed), sessions
        self.spread = spread  # most sessions hold collectives
        self.rest: list[m.Message] = []
        self.rate = 0.5  # share of the session's messages that are changed
        self.uses = False  # whether the session consists of uses of one op

    def message(self) -> Any:
        """The next message of the current session, changed or not; an empty list at its end."""
        if not self.rest:
            programs = self.random.random() < (0.7 if self.spread else 0.2)
            recorded = self.sessions[SPREAD] if self.spread else self.sessions[:PROGRAMS]
            session = self.random.choice(recorded if programs else self.sessions[PROGRAMS:])
            self.uses = not programs
            self.rest = list(session[self.random.choice((0, 0, 0, 0, 0, 1, 2)) :] or session)
            self.rate = self.random.choice((0.05, 0.15, 0.3, 0.8))
        r = self.random.random()
        if r < self.rate / 8:
            return self.other()
        found = self.rest.pop(0)
        rate = max(self.rate, OFTEN) if self.uses and len(self.rest) < AGAIN else self.rate
        if r < rate and isinstance(found, m.Batch):
            for _ in range(self.random.choice((1, 1, 1, 2, 4))):
                found = self.batch(found)
        return found

    # Values

    def number(self) -> Any:
        r = self.random
        return r.choice((r.randint(-2, 9), r.randint(-2, 9), r.randint(0, 60), r.random(), True, r.choice(FAR), float("nan")))

    def whole(self) -> int:
        r = self.random
        return r.choice((r.randint(-2, 9), r.randint(0, 60), r.choice(FAR)))

    def wire(self, old: tuple = ()) -> tuple:
        """A spec, near another or not."""
        r, new = self.random, list(old)
        if new and r.random() < 0.7:
            i = r.randrange(len(new))
            new[i] = r.randrange(-4, len(DTYPES) + 1) if i == 0 else r.choice((0, 1, 2, 3, 5, -1, *FAR))
            return tuple(new)
        return (r.randrange(-4, len(DTYPES) + 1), *(r.choice((0, 1, 2, 3, 4)) for _ in range(r.choice((0, 1, 2, 3, 70)))))

    def value(self, depth: int = 3) -> Any:
        r = self.random
        if depth and r.random() < 0.4:
            return [self.value(depth - 1) for _ in range(r.randrange(4))]
        deep: Any = 1
        for _ in range(r.choice((0, 0, 700)) if depth == 3 and r.random() < 0.05 else 0):
            deep = [deep]
        return r.choice((self.number(), None, r.choice(TEXTS), b"bytes", {"a": 1}, deep, 0, 1))

    def within(self, value: Any) -> Any:
        """The same with one change."""
        r = self.random
        if isinstance(value, (list, tuple)) and value and r.random() < 0.8:
            new = list(value)
            i = r.randrange(len(new))
            if r.random() < 0.15:
                del new[i]
            elif r.random() < 0.1:
                new.insert(i, self.value())
            else:
                new[i] = self.within(new[i])
            return tuple(new)
        if isinstance(value, bool) or value is None or r.random() < 0.3:
            return self.value()
        return r.choice((self.whole(), value + 1, -value)) if isinstance(value, int) else self.value()

    # Parts of a batch

    def instruction(self, ins: tuple) -> tuple:
        r, new = self.random, list(ins)
        match r.randrange(8):
            case 0:
                new.append(self.number())
            case 1 if new:
                del new[r.randrange(len(new))]
            case 2:
                new[:1] = [self.whole()]
            case _ if new:
                new[r.randrange(len(new))] = self.number()
        return tuple(new)

    def code(self, code: list) -> list:
        r, new = self.random, list(code)
        i = r.randrange(len(new)) if new else 0
        match r.randrange(6):
            case 0 if new:
                del new[i]
            case 1 if new:
                new.insert(i, new[r.randrange(len(new))])
            case 2 if new:
                j = r.randrange(len(new))
                new[i], new[j] = new[j], new[i]
            case _ if new:
                new[i] = self.instruction(new[i])
        return new

    def kind(self, kind: m.KindDef) -> m.KindDef:
        r = self.random
        match r.randrange(6):
            case 0 if r.random() < 0.2:
                return self.collective(kind)
            case 0:
                return replace(kind, op=r.choice((*TABLE, "no such op")))
            case 1:
                return replace(kind, statics=self.value())
            case 2 | 3:
                return replace(kind, statics=self.within(kind.statics))
            case 4:
                return replace(kind, signal=r.choice((*TEXTS, "rows")), number=r.choice((kind.number, self.whole())))
        ins = list(kind.ins)
        i = r.randrange(len(ins) + 1)
        ins[i : i + 1] = [self.wire(ins[i] if i < len(ins) else ())]
        return replace(kind, ins=tuple(ins))

    def collective(self, kind: m.KindDef) -> m.KindDef:
        """As the dispatcher writes it, which a client may not."""
        r, group = self.random, self.random.choice(GROUPS)
        spec = next((spec for spec in kind.ins if spec and spec[0] >= 0 and len(spec) > 1), (0, 2))
        op, statics = r.choice((
            ("all_reduce", (group, r.choice(("sum", "max", "odd")))), ("all_gather", (group, 0, r.choice((4, *FAR)), ())),
            ("reduce_scatter", (group, "sum", 0, (r.choice((1, 2)),))), ("broadcast", (group, spec[1:], spec[0])),
            ("exchange", (group, ((1, (0,), spec[1:]),), ((0, (0,), spec[1:]),), spec[1:], spec[0])),
        ))  # fmt: skip
        return m.KindDef(r.choice((kind.number, -1, -2)), op, (spec, (-2,)), statics)

    def word(self) -> m.Message:
        """Messages about collectives that only workers send, to one another and to the dispatcher."""
        r, peer = self.random, self.random.choice(("c0", "bad1", ""))
        at = (r.choice((0, 1, 2, -1, 99)), r.choice(GROUPS), r.choice((0, 1, 2, -1, -2, *FAR)))
        counts = tuple((r.choice(GROUPS), self.whole()) for _ in range(r.randrange(3)))
        return r.choice((
            m.Piece(at[0], peer, self.whole(), r.choice(TEXTS), "RemoteError", 1, r.choice((0, 0, 1))), m.StallQuery(*at),
            m.InputFailed(*at, "RemoteError", "odd", 1), m.Noted(*at), m.Aborted(*at, "WorkerLost", "odd", 1),
            m.Ways(*at[:2], ("memory", "mail", "odd"), (0, 1)), m.Begun(self.whole(), counts), m.Skip(self.whole(), counts),
            m.Attached(at[0], True, peer), m.Attach(peer, b"t"), m.Drop(peer, self.whole()), m.Peers((), "odd"),
        ))  # fmt: skip

    def trace(self, trace: TraceDef) -> TraceDef:
        r = self.random
        match r.randrange(6):
            case 0:
                return replace(trace, inputs=self.whole())
            case 1:
                return replace(trace, results=tuple(self.whole() for _ in range(r.randrange(3))))
            case 2:
                holes = tuple(tuple((self.whole(), self.whole()) for _ in range(r.randrange(3))) for _ in range(r.randrange(3)))
                return replace(trace, holes=holes)
            case 3:
                return replace(trace, dies=tuple(self.whole() for _ in range(r.randrange(3))))
            case 4:
                return replace(trace, number=self.whole())
        return replace(trace, body=self.code(trace.body))

    def batch(self, batch: m.Batch) -> m.Batch:
        r = self.random
        if r.random() < 0.05:
            return replace(batch, deferred=r.choice((0, 1, len(batch.code), self.whole())))
        often = "kinds" if len(batch.kinds) == len(batch.code) == 1 else "code"
        changed = r.choice((often, often, "code", "kinds", "kinds", "gets", "traces", "rest"))
        if changed == "kinds" and batch.kinds:
            kinds = list(batch.kinds)
            i = r.randrange(len(kinds))
            kinds[i] = self.kind(kinds[i])
            return replace(batch, kinds=tuple(kinds))
        if changed == "traces" and batch.traces:
            return replace(batch, traces=tuple(map(self.trace, batch.traces)))
        if changed == "gets":
            more = tuple((self.whole(), self.whole(), self.wire()) for _ in range(r.randrange(3)))
            gets = tuple((t, i, self.wire(w)) if r.random() < 0.5 else (t, self.whole(), w) for t, i, w in batch.gets)
            return replace(batch, gets=gets + more)
        if changed == "rest":
            drops = tuple(self.whole() for _ in range(r.randrange(3)))
            return replace(batch, serial=self.whole(), ack=r.random() < 0.5, forget=r.choice((0, self.whole())), drops=drops)
        return replace(batch, code=self.code(batch.code))

    def other(self) -> m.Message:
        """Any other message, whether a client may send it or not."""
        r = self.random
        if r.random() < 0.2:
            return self.word()
        signal = {"mesh": self.value(), "axes": self.value(), "workers": self.value()}
        workers = r.choice((None, [0], [1, 7], [1, 0], [0, 1], [0, 0], [2, 0, 1]))
        plain = {"mesh": None, "axes": [r.choice((0, 1, -1, None))], "workers": workers}
        peer = r.choice(("c0", "bad", "w0", ""))
        return r.choice((
            m.Ask(self.whole(), r.choice((*TEXTS, "stats", "programs")), self.value()),
            m.Ask(self.whole(), "placement", [self.value() for _ in range(r.randrange(4))]),
            m.Configure({r.choice(("rows", "", "s")): r.choice((signal, plain, plain))}),
            m.Hello(
                r.choice((m.VERSION, 2)), "", r.choice(TEXTS), self.whole(), self.number(), r.choice((*TEXTS, *m.PRIORITIES))
            ),
            m.Join(m.VERSION, "", r.choice(TEXTS), "numpy", "cpu", "here", 1, r.choice(("", "nowhere", "x|y")), "x"),
            m.Store(m.Reached(r.choice((*TEXTS, "h:1")), r.choice(TEXTS), r.choice((*TEXTS, "1 2 3 " + "ab" * 16)))),
            m.Done(peer, self.whole(), (self.whole(),)),
            m.Arrived(peer, self.whole()), m.Answer(self.whole(), self.value()), m.Note("x", 1, peer), m.Drop(peer),
            m.Begun(self.whole(), ()), m.Skip(self.whole(), ()), m.Refuse(peer, "x"), m.Progress(peer, self.whole()), m.Drain(),
            m.Run(peer, 1, (), [(1, 1, 1)]), m.Upload(peer, self.whole(), self.wire()), m.Release(self.whole()),
            m.Piece(0, peer, self.whole()), m.Peers(()), m.Welcome("x", 0), m.Ack(self.whole()), m.Bye("x"),
        ))  # fmt: skip

    def bytes(self, message: Any) -> bytes:
        """An encoded message, sometimes with a changed byte or truncated."""
        try:
            data = m.encode(message)
        except (OverflowError, TypeError, RecursionError):  # a number that cannot be encoded
            return b""
        r = self.random.random()
        if r < 0.02 and data:
            changed = bytearray(data)
            changed[self.random.randrange(len(data))] = self.random.randrange(256)
            return bytes(changed)
        return data[: self.random.randrange(len(data))] if r < 0.03 and data else data
