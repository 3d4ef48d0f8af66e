"""The conformance test of backends: the samples of all rows, through the engine's interface, compared with NumPy's results."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gt.backends.custom import checked
from gt.ops import TABLE, infer
from gt.spec import DTYPES, Spec
from gt.testing import samples
from gt.testing.samples import ROWS, Sample
from gt.worker.engine import Engine
from gt.worker.engine.choose import make
from gt.worker.engine.custom import CustomEngine
from gt.worker.engine.numpy import NumPyEngine

SHOWN = 10  # most failures listed in a message
NUMPY = NumPyEngine()


@dataclass
class Report:
    """The number of checked rows and samples, and of samples by way."""

    backend: str
    rows: int = 0
    samples: int = 0
    ways: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        ways = ", ".join(f"{n} {way}" for way, n in self.ways.most_common())
        return f"backend {self.backend}: {self.samples} samples of {self.rows} rows are right ({ways})"


def check_backend(backend: Any, rows: tuple[str, ...] = ()) -> Report:
    """Check a backend, given as its name, its class or its engine, on every row of the op table or on those named.

    Raises AssertionError with the failures; a backend that is not available raises ValueError.

    >>> print(gt.testing.check_backend("numpy", rows=("add", "exp")).rows)
    2
    """
    engine = _engine(backend)
    report = Report(engine.name)
    failures = list(_round_trips(engine))
    for row in ROWS:
        if rows and row.name not in rows:
            continue
        report.rows += 1
        for sample in (*samples.plain(row), *samples.varied(row)):
            report.samples += 1
            report.ways[engine.way(sample.kind)] += 1
            if wrong := _wrong(engine, sample):
                failures.append(f"{sample.id}: {wrong}")
    if failures:
        more = f"\nand {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
        raise AssertionError(f"backend {engine.name!r} is wrong in {len(failures)} of {report.samples} samples:\n"
                             + "\n".join(failures[:SHOWN]) + more)  # fmt: skip
    return report


def _engine(backend: Any) -> Engine:
    if isinstance(backend, str):
        return make(backend)
    if inspect.isclass(backend):
        return CustomEngine(backend.__name__, checked(backend))
    return backend


def _round_trips(engine: Engine) -> Iterator[str]:
    """Loaded bytes are stored unchanged, for every dtype and for empty tensors."""
    for spec in (Spec(shape, dtype) for dtype in DTYPES for shape in ((2, 3), (), (0, 2))):
        if wrong := _told(partial(_round_trip, engine, spec)):
            yield f"load and store of {spec.dtype.name} {spec.shape}: {wrong}"


def _round_trip(engine: Engine, spec: Spec) -> str:
    data = bytes(NUMPY.store(samples.draw(spec, np.random.default_rng(0)), spec))
    back = bytes(engine.store(engine.load(memoryview(data), spec, True), spec))
    return "" if back == data else "store returned other bytes than were loaded"


def _told(check: Callable[[], str]) -> str:
    """The result of a check, or the error that the backend's code raised in it."""
    try:
        return check()
    except Exception as error:  # a backend may raise anything, perhaps only when a value is read; the message has the location
        return f"{type(error).__name__}: {error}"


def _wrong(engine: Engine, sample: Sample) -> str:
    """A description of this sample's failure, or ""."""
    given = samples.for_numpy(sample)
    want = samples.several(NUMPY.kernel(sample.kind)(*given))
    return _told(partial(_compared, engine, sample, given, want))


def _compared(engine: Engine, sample: Sample, given: list[Any], want: Sequence[Any]) -> str:
    kind = sample.kind
    loaded = [_load(engine, o, s, sample.strided) if isinstance(s, Spec) else o for o, s in zip(given, kind.ins)]
    found = samples.several(engine.kernel(kind)(*loaded))
    engine.sync()
    if len(found) != len(kind.outs):
        return f"{len(found)} results, want {len(kind.outs)}"
    for f, spec in zip(found, kind.outs):
        if tuple(f.shape) != spec.shape:
            return f"expected a result of shape {spec.shape}, got {tuple(f.shape)}"
    read = [_read(engine, f, spec) for f, spec in zip(found, kind.outs)]
    for (f, spec), (w, _) in zip(samples.defined(kind, read), samples.defined(kind, want)):
        if wrong := _differs(f, w, spec, sample, given):
            return wrong
    for array, before, spec in zip(loaded, given, kind.ins):
        if isinstance(spec, Spec) and not np.array_equal(_read(engine, array, spec), before, equal_nan=spec.dtype.rank >= 2):
            return "an input was written to"
    return ""


def _load(engine: Engine, value: Any, spec: Spec, strided: bool) -> Any:
    """An operand as the engine's array; with `strided`, as every second element of another, if the engine has views."""
    array = np.ascontiguousarray(value)
    if not strided or not spec.ndim:
        return engine.load(memoryview(bytes(NUMPY.store(array, spec))), spec, True)
    room = np.zeros((*spec.shape[:-1], spec.shape[-1] * 2), array.dtype)
    room[..., ::2] = array
    wide = Spec(room.shape, spec.dtype)
    take = (*((d, 1) for d in spec.shape[:-1]), (spec.shape[-1], 2))
    kind = infer(TABLE["slice"], (wide, *[int] * spec.ndim), (take,))
    return engine.kernel(kind)(engine.load(memoryview(bytes(NUMPY.store(room, wide))), wide, True), *[0] * spec.ndim)


def _read(engine: Engine, array: Any, spec: Spec) -> np.ndarray:
    return NUMPY.load(memoryview(bytes(engine.store(array, spec))), spec, True)


def _differs(found: np.ndarray, want: np.ndarray, spec: Spec, sample: Sample, given: list[Any]) -> str:
    infinite = any(isinstance(o, np.ndarray) and o.dtype.kind == "f" and np.isinf(o).any() for o in given)
    if infinite and spec.dtype.rank == 2:
        found = np.where(np.isnan(want), want, found)  # at infinity the limit is accepted in place of NaN
    try:
        samples.assert_close(found, want, spec, "", samples.coarsest(sample.kind))
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""
