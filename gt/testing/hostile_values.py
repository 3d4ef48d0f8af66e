"""Kernels of a worker with hostile values: indices, pivots, class numbers and degrees that no user's program has, numbers that
are not finite, and changed settings and specs. Run it under an allocator that guards its blocks to see writes outside of them:
libraries behind an engine do not check everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.errors import ProtocolError
from gt.ops import Row, infer
from gt.spec import DTYPES, Spec
from gt.testing import samples
from gt.testing.hostile import FAR, Hostile
from gt.transport import messages as m
from gt.transport.checks import kind_in
from gt.worker.client_values import Broken, out_of_memory
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.engine.numpy import NumPyEngine, numpy_dtype
from gt.worker.peer_names import DISPATCHER

INDICES = (-1, -2, 0, 1, 2, 3, 5, 6, 7, 9, 60, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, *FAR)
ODD = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -1e300, 5e-324, 1.0)
MOST = 1 << 12  # elements of an operand
NUMPY = NumPyEngine()


class HostileValues:
    """A worker, and instructions of one op each with hostile operands."""

    def __init__(self, seed: int, engine: str = "numpy") -> None:
        self.hostile = Hostile(seed, [])
        self.random, self.numbers = self.hostile.random, np.random.default_rng(seed)
        self.worker = Worker(make(engine))
        self.worker.handle(m.Mail(DISPATCHER, m.Welcome("w", 0)))
        self.rows = [r for r in samples.ROWS if r.tries and not r.collective]

    def one(self) -> str:
        """Run one instruction, and return its text."""
        row = self.random.choice(self.rows)
        operands, settings = self.random.choice(row.tries)
        definition = self._definition(row, operands, settings)
        self.worker.handle(m.Mail(DISPATCHER, m.Run("bad", 1, (), [])))
        names = [self._operand(i + 1, wire, given) for i, (wire, given) in
                 enumerate(zip(definition.ins, (*operands, *[1] * len(definition.ins))))]  # fmt: skip
        try:
            result_count = len(kind_in(definition).outs)
        except (ProtocolError, ValueError, TypeError, IndexError):  # the worker refuses it too, for the same reason
            result_count = 1
        results = tuple(range(100, 100 + result_count))
        code = [(definition.number, *results, *names)]
        answers = self.worker.handle(m.Mail(DISPATCHER, m.Run("bad", 2, (definition,), code, (), True)))
        assert any(isinstance(mail.message, m.Done) for mail in answers), "the run was not acknowledged"
        self._check(results)
        self.worker.handle(m.Mail(DISPATCHER, m.Drop("bad")))
        return f"{definition} {names}"

    def _definition(self, row: Row, operands: Sequence[Any], settings: dict[str, Any]) -> m.KindDef:
        full = {**{name: row.defaults.get(name) for name in row.statics}, **settings}
        kind = infer(row, tuple(map(samples.spec_of, operands)), tuple(full[name] for name in row.statics))
        made = m.kind_out(40, kind)
        for _ in range(self.random.choice((0, 1, 1, 2))):
            changed = self.hostile.kind(made)
            made = m.KindDef(40, made.op, changed.ins, changed.statics)
        try:
            return m.decode(m.encode(m.Run("bad", 1, (made,), []))).kinds[0]
        except (OverflowError, TypeError, RecursionError):  # a number that cannot be encoded
            return m.kind_out(40, kind)

    def _operand(self, id: int, wire: tuple, given: Any) -> Any:
        """A tensor's id, whose value is on the worker, or a number."""
        if not wire or wire[0] < 0:
            return self.random.choice((given if type(given) in (int, float, bool) else 1, self.hostile.number()))
        if wire[0] < len(DTYPES) and len(wire) < 9 and all(type(d) is int and 0 <= d < MOST for d in wire[1:]):
            spec = Spec(tuple(wire[1:]), DTYPES[wire[0]])
            if spec.numel <= MOST:
                values, engine = self.worker.spaces["bad"], self.worker.engine
                data = bytes(NUMPY.store(np.ascontiguousarray(self._array(spec)), spec))
                values.table[id], values.specs[id] = engine.load(memoryview(data), spec, True), spec
        return id

    def _array(self, spec: Spec) -> np.ndarray:
        r = self.random
        if spec.dtype.rank == 1:
            found = self.numbers.integers(0, 5, spec.shape).astype(numpy_dtype(spec.dtype))
            least, most = np.iinfo(found.dtype).min, np.iinfo(found.dtype).max
            odd: Callable[[], Any] = lambda: max(least, min(most, r.choice(INDICES)))  # noqa: E731
        else:
            found, odd = np.array(samples.draw(spec, self.numbers)), lambda: r.choice(ODD)
        flat = found.reshape(-1)
        for _ in range(r.choice((0, 1, 1, 3)) if flat.size and spec.dtype.rank else 0):
            flat[r.randrange(flat.size)] = odd()
        return found

    def _check(self, results: tuple[int, ...]) -> None:
        values = self.worker.spaces["bad"]
        for id in results:
            found, spec = values.table.get(id), values.specs.get(id)
            if found is not None and not isinstance(found, Broken):
                assert spec is not None and tuple(found.shape) == spec.shape, f"{spec} is {tuple(found.shape)}"
                try:
                    self.worker.engine.store(found, spec)
                except Exception as error:  # a view of few bytes may be larger than the memory: its reader is told
                    if not out_of_memory(error):
                        raise


def fuzz(seed: int, count: int, restart: Callable[[], Any], engine: str = "numpy") -> int:
    """Run instructions; `restart` is called before each. Returns their number."""
    hostile = HostileValues(seed, engine)
    with np.errstate(all="ignore"):
        for _ in range(count):
            restart()
            hostile.one()
    return count
