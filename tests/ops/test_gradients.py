"""Every row's gradient, and the gradient of that: against finite differences of its own kernel, and PyTorch's autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.backward import backward
from gt.ops import TABLE, Row
from gt.spec import Spec, complex128, float64
from gt.worker.engine.choose import make as engine_for
from tests.ops import samples
from tests.ops.oracle import derivatives, oracle
from tests.ops.samples import ROWS, SIGNED, Sample, several

NUMPY = engine_for("numpy")
# Where a float input has no gradient, in PyTorch either: class weights; and a mask, which the client composes with when it
# wants one. A padding row of an embedding is left out of the gradient by intent, a complete QR has none, and
# eigenvectors jump from one phase to another (test_complex.py differentiates functions that do not depend on it).
FLAT = {("cross_entropy", 3), ("attention", 4)}
# Gradients GT has and PyTorch has not: of known statistics, flat functions, and values of which only a corner is scattered.
BEYOND = {("batch_norm", 1), ("batch_norm", 2), ("floor_divide", 0), ("floor_divide", 1)}
CORNERS = {"scatter", "scatter_add"}


def reads_saved(row: Row) -> bool:
    """A gradient row that reads tensors saved by its forward row is differentiated as a function of the inputs alone: it is
    the gradient of the forward row's gradient that proves it."""
    names = (row.name.removesuffix("_grad"), row.name.replace("_grad", "_train"))
    return row.name.endswith("_grad") and row.grad is None and any(n in TABLE and TABLE[n].saved for n in names)


PULLED = [r for r in ROWS if (r.grad is not None or r.lower is not None) and not reads_saved(r)]
STEP = 1e-6


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    with gt.testing.cluster(1, "numpy"):
        yield


def doubled(row: Row) -> list[Sample]:
    """The tries in float64, so that differences are sharp. A row that mixes precisions by design keeps one of its tries."""
    found = []
    for i, (operands, statics) in enumerate(row.tries):
        changed = tuple(samples.with_dtype(o, float64) for o in operands)
        specs = [samples.spec_of(o) for o in changed]
        if any(isinstance(s, Spec) and s.dtype.rank == 2 and s.dtype is not float64 for s in specs):
            continue
        sample = samples.make(row, changed, statics, f"gradient {i}")
        outs = several(NUMPY.kernel(sample.kind)(*sample.operands))
        outside = any(np.isnan(samples.as_numpy(a)).any() for a in outs)
        left_out = row.name == "embedding" and statics["padding"] >= 0 or statics.get("complete") or row.name == "eig"
        if not outside and not left_out:
            found.append(sample)
    return found


def with_complex(row: Row) -> list[Sample]:
    """The first try that the row takes in complex numbers. Vectors that are right up to their phase have no one gradient,
    and silu has none of complex numbers, in PyTorch either."""
    for i, (operands, statics) in enumerate(row.tries if row.complex and row.name not in {*SIGNED, "silu"} else ()):
        changed = tuple(samples.with_dtype(o, complex128) for o in operands)
        if changed != operands and (s := samples.refused(row, changed, statics, f"complex gradient {i}")):
            return [s]
    return []


def floats(sample: Sample) -> list[int]:
    """The inputs that may have a gradient: floats for which the row has one."""
    grads = sample.kind.row.grad
    able = [isinstance(s, Spec) and s.dtype.rank >= 2 for s in sample.kind.ins]
    if isinstance(grads, tuple):
        able = [a and i < len(grads) and grads[i] is not None for i, a in enumerate(able)]
    return [i for i, a in enumerate(able) if a and (sample.kind.row.name, i) not in FLAT]


def kept(sample: Sample) -> list[int]:
    """The outputs that have gradients."""
    outs = sample.kind.outs
    return [i for i in range(len(outs) - sample.kind.row.saved) if outs[i].dtype.rank >= 2]


def tensors(sample: Sample, wanted: list[int]) -> list[Any]:
    return [
        gt.tensor(o, dtype=s.dtype, requires_grad=i in wanted) if isinstance(s, Spec) else o
        for i, (o, s) in enumerate(zip(sample.operands, sample.kind.ins))
    ]


def blend(sample: Sample) -> list[np.ndarray]:
    """Weights that make one number of the outputs."""
    rng = np.random.default_rng(11)
    real = [rng.uniform(0.5, 1.5, s.shape) for s in sample.kind.outs]
    return [
        np.asarray(w + 1j * rng.uniform(0.5, 1.5, s.shape)) if s.dtype.is_complex else w for w, s in zip(real, sample.kind.outs)
    ]


def run_gt(sample: Sample, operands: list[Any], weights: list[np.ndarray]) -> Tensor:
    found = several(apply(sample.kind.row, tuple(operands), sample.kind.statics))
    total = None
    for i in kept(sample):
        term = (found[i] * gt.tensor(weights[i])).sum().real
        total = term if total is None else total + term
    return total  # type: ignore[return-value]


def gradients(sample: Sample, wanted: list[int], graph: bool = False) -> tuple[list[Any], list[Tensor | None]]:
    operands = tensors(sample, wanted)
    total = run_gt(sample, operands, blend(sample))
    one = gt.ones((), dtype=float64)
    return operands, backward([total], [one], True, graph, inputs=[operands[i] for i in wanted])


def differences(f: Any, values: list[np.ndarray]) -> list[np.ndarray]:
    """Central differences of a number with respect to each element of each array; of a complex one's parts as one number."""
    found = []
    for a in values:
        g = np.zeros(a.shape, a.dtype)
        for at in np.ndindex(a.shape):
            old = a[at]
            for way in (1, 1j) if a.dtype.kind == "c" else (1,):
                a[at] = old + STEP * way
                up = f()
                a[at] = old - STEP * way
                down = f()
                a[at] = old
                g[at] += (up - down) / (2 * STEP) * way
        found.append(g)
    return found


def slope(f: Any, a: np.ndarray, direction: np.ndarray) -> float:
    """The central difference of a number along a direction."""
    old = a.copy()
    a[...] = old + STEP * direction
    up = f()
    a[...] = old - STEP * direction
    down = f()
    a[...] = old
    return float((up - down) / (2 * STEP))


def symmetric(sample: Sample, g: np.ndarray) -> np.ndarray:
    """A matrix of which one half is read has its gradient there; PyTorch and GT spread it over both halves."""
    half = sample.kind.row.name in ("cholesky", "cholesky_ex", "eigh") or sample.kind.settings.get("hermitian")
    return (g + np.swapaxes(g.conj(), -1, -2)) / 2 if half else g


@pytest.mark.parametrize("row", PULLED, ids=lambda r: r.name)
def test_gradients_are_those_of_finite_differences(row: Row):
    for sample in (*doubled(row), *with_complex(row)):
        wanted = floats(sample)
        if not wanted or not kept(sample):
            continue
        _, found = gradients(sample, wanted)
        kernel, weights = NUMPY.kernel(sample.kind), blend(sample)

        def number() -> float:
            outs = several(kernel(*sample.operands))  # noqa: B023
            return float(sum((outs[i] * weights[i]).sum().real for i in kept(sample)))  # noqa: B023

        want = differences(number, [sample.operands[i] for i in wanted])
        for i, g, w in zip(wanted, found, want):
            g = np.zeros(w.shape) if g is None else g.numpy()
            assert g.shape == w.shape, f"{sample.id}: gradient {i} has {g.shape}, want {w.shape}"
            np.testing.assert_allclose(symmetric(sample, g), symmetric(sample, w), rtol=1e-4, atol=1e-5,
                                       err_msg=f"{sample.id}, input {i}")  # fmt: skip


@pytest.mark.parametrize("row", [r for r in PULLED if oracle(r) and r.name not in SIGNED], ids=lambda r: r.name)
def test_gradients_are_pytorchs(row: Row):
    for sample in (*doubled(row), *with_complex(row)):
        wanted = [i for i in floats(sample) if (row.name, i) not in BEYOND]
        if not wanted or not kept(sample):
            continue
        if not isinstance(sample.kind.ins[0], Spec):
            continue  # PyTorch spells a number in front in its own way
        if row.name in CORNERS and sample.kind.ins[1].shape != getattr(sample.kind.ins[2], "shape", None):  # type: ignore
            continue
        _, found = gradients(sample, wanted)
        theirs = samples.for_torch(sample)
        with derivatives():
            for i in wanted:
                theirs[i].requires_grad_()
            outs = several(oracle(row)(*theirs, **sample.kind.settings))  # type: ignore[misc]
            total = sum((outs[i] * torch.from_numpy(blend(sample)[i])).sum().real for i in kept(sample))
            if not total.requires_grad:  # type: ignore[union-attr]
                continue
            want = torch.autograd.grad(total, [theirs[i] for i in wanted], allow_unused=True)
        for i, g, w in zip(wanted, found, want):
            zeros = np.zeros(sample.kind.ins[i].shape)  # type: ignore[union-attr]
            np.testing.assert_allclose(zeros if g is None else g.numpy(), zeros if w is None else w.numpy(), rtol=1e-6,
                                       atol=1e-8, err_msg=f"{sample.id}, input {i}")  # fmt: skip


def directions(sample: Sample, a: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Each element of a small array on its own; several random ones where differences of each would take long."""
    ways = (1, 1j) if a.dtype.kind == "c" else (1,)
    if a.size <= 6:
        return [symmetric(sample, way * d.reshape(a.shape)) for d in np.eye(a.size) for way in ways]
    return [symmetric(sample, sum(way * rng.uniform(-1, 1, a.shape) for way in ways)) for _ in range(4)]  # type: ignore[arg-type]


@pytest.mark.parametrize("row", PULLED, ids=lambda r: r.name)
def test_gradients_of_gradients_are_those_of_finite_differences(row: Row):
    for sample in doubled(row)[:2]:
        wanted = floats(sample)
        if not wanted or not kept(sample):
            continue
        rng = np.random.default_rng(5)
        probes = [rng.uniform(0.5, 1.5, sample.kind.ins[i].shape) for i in wanted]  # type: ignore[union-attr]

        def number(graph: bool = False) -> Any:
            operands, found = gradients(sample, wanted, graph)  # noqa: B023
            pairs = [(g, p) for g, p in zip(found, probes) if g is not None]  # noqa: B023
            terms = [(g * gt.tensor(p)).sum().real for g, p in pairs]
            total = terms[0]
            for t in terms[1:]:
                total = total + t
            return (operands, total) if graph else float(total.item())

        operands, total = number(graph=True)
        leaves = [operands[i] for i in wanted]
        if total.requires_grad:
            found = backward([total], [gt.ones((), dtype=float64)], True, False, inputs=leaves)
        else:
            found = [None] * len(leaves)
        for i, g in zip(wanted, found):
            a = sample.operands[i]
            for direction in directions(sample, a, rng):
                mine = 0.0 if g is None else float((symmetric(sample, g.numpy()).conj() * direction).sum().real)
                np.testing.assert_allclose(mine, slope(number, a, direction), rtol=1e-3, atol=1e-4,
                                           err_msg=f"{sample.id}, input {i}")  # fmt: skip
