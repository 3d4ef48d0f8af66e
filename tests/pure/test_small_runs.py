"""Runs of small instructions in C give the bits of their ops one by one, which are PyTorch's where each step rounds once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ENGINE as NUMPY
from programs import calls, programs

from gt.ops import Kind, infer, row
from gt.program import Hole, Instruction, Program, run, with_frees
from gt.small import NATIVE
from gt.small.plan import RunBuilder
from gt.small.steps import ALL, EXACT, OWN
from gt.spec import DType, Spec, bfloat16, bool_, float32, float64, int64
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.engine import TorchEngine
from gt.worker.programs.codegen import KernelTable, operands_in_order, outlive, straight_line
from gt.worker.programs.passes.small_runs import small_runs

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the part in C was not built")
ENGINE = TorchEngine("cpu")
RUNS: Any = ENGINE.small_runs
UNARY = ("neg", "abs", "square", "relu", "exp", "tanh", "sigmoid", "reciprocal", "sqrt")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
CHOOSE = ("maximum", "minimum", "relu", "min_at", "max_at")  # of 0.0 and -0.0 PyTorch takes one by the place of the element
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
SHAPES = ((5, 7), (5, 1), (1, 7), (7,), (5,), (), (7, 5), (35,), (3, 5, 7), (2, 2, 3, 2, 2))


def kind_of(name: str, *ins: Any, **statics: Any) -> Kind:
    found = row(name)
    return infer(found, ins, tuple(statics[n] for n in found.statics))


class Made:
    """A program in the making: its inputs, and instructions over them."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.specs, self.body, self.kinds = draw, {}, [], {}
        self.holes = 0

    def value(self, dtype: Any, shapes: Any = None) -> int | None:
        fit = [v for v, s in self.specs.items() if s.dtype is dtype and (shapes is None or s.shape in shapes)]
        return self.draw(st.sampled_from(fit)) if fit else None

    def op(self, name: str, *operands: Any, ints: tuple[int, ...] = (), **statics: Any) -> None:
        """Add an instruction, if its operands go together. A number is of type float or a Hole."""
        ins = [float if isinstance(o, (float, Hole)) else self.specs[o] for o in operands] + [int] * len(ints)
        try:
            kind = kind_of(name, *ins, **statics)
        except (ValueError, TypeError, IndexError):
            return
        made = tuple(range(len(self.specs) + 1, len(self.specs) + 1 + len(kind.outs)))
        self.kinds[len(self.body)] = kind
        self.body.append(Instruction(len(self.body), kind, made, operands + ints))
        self.specs |= dict(zip(made, kind.outs))

    def number(self) -> Any:
        if self.draw(st.booleans()):
            return self.draw(st.sampled_from([0.5, -1.25, 2.0, float("inf"), 0.0, -0.0]))
        self.holes += 1
        return Hole(self.holes - 1)


@st.composite
def small_programs(draw: Any) -> tuple[Program, int]:
    made = Made(draw)
    inputs = [Spec(draw(st.sampled_from(SHAPES))) for _ in range(3)] + [Spec((5,), int64), Spec((5, 7))]
    made.specs = dict(enumerate(inputs, 1))
    for _ in range(draw(st.integers(2, 14))):
        a, b = made.value(float32), made.value(float32)
        last = made.specs[a].ndim - 1
        name = draw(
            st.sampled_from(["unary", "binary", "number", "compare", "where", "rows", "view", "product", "index", "sum"])
        )
        if name == "unary":
            made.op(draw(st.sampled_from(UNARY)), a)
        elif name == "binary":
            made.op(draw(st.sampled_from(BINARY)), a, b)
        elif name == "number":
            made.op(draw(st.sampled_from(BINARY)), a, made.number())
        elif name == "compare":
            made.op(draw(st.sampled_from(COMPARED)), a, b)
        elif name == "where" and (truth := made.value(bool_)):
            made.op("where", truth, a, draw(st.sampled_from([b, 0.5])))
        elif name == "rows" and last >= 0:
            kind = draw(st.sampled_from(["softmax", "log_softmax", "min_at", "max_at", "argmin"]))
            keep = {} if "soft" in kind else {"keepdims": False}
            made.op(kind, a, axis=(last,) if kind == "argmin" else last, **keep)
        elif name == "view" and last >= 0:
            made.op("permute", a, axes=tuple(range(last, -1, -1)))
            made.op("reshape", a, shape=(made.specs[a].numel,))
            made.op("expand", a, shape=(2, *made.specs[a].shape))
            made.op("reshape", 4, shape=(1, 5))
            shape = made.specs[a].shape
            places = [draw(st.integers(0, n - 1)) for n in shape]
            take = tuple([draw(st.sampled_from([(-1, 1), (n - at, 1), (1, 2), (at + 1, -1)])) for n, at in zip(shape, places)])
            made.op("slice", a, ints=tuple(places), take=take)
        elif name == "product":
            made.op("matmul", a, b)
            made.op("linear", a, b)
            made.op("linear_weight_grad", a, b)
        elif name == "index" and last >= 0:
            if made.specs[a].shape[0] >= 3:  # the index has places up to 2
                made.op("index_select", a, 4, axis=0)
            made.op("cat", a, a, axis=last)
            made.op("roll", a, ints=(2, -9), axes=(last, 0))
        elif name == "sum" and last >= 0:
            axes = draw(st.sampled_from([(0,), (last,), tuple(range(last + 1))]))
            made.op(draw(st.sampled_from(["sum", "mean"])), a, axis=axes, keepdims=draw(st.booleans()))
    values = [r for ins in made.body for r in ins.results]
    if not values:
        made.op("neg", 1)
        values = list(made.body[-1].results)
    results = tuple(sorted(draw(st.sets(st.sampled_from(values), min_size=1))))
    return Program(40, 5, with_frees(made.body, {*results, *range(1, 6)}), results, made.holes, ()), made.holes


def inputs_of(p: Program, seed: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    specs, found = p.specs, []
    for i in range(1, p.inputs + 1):
        spec = specs.get(i, Spec(()))
        a = rng.integers(0, 3, spec.shape) if spec.dtype is int64 else rng.standard_normal(spec.shape, np.float32)
        a = torch.from_numpy(np.asarray(a))
        found.append(a.mT.contiguous().mT if a.ndim > 1 and i % 2 else a)
    return found


def same(a: torch.Tensor, b: torch.Tensor, signs: bool = False) -> None:
    """Equal elements; with `signs`, of zeros, too."""
    assert a.dtype is b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(a.numpy(), b.numpy())
    known = ~torch.isnan(b)  # a nan's sign is the machine's
    assert not signs or np.array_equal(np.signbit(a[known].numpy()), np.signbit(b[known].numpy()))


@settings(max_examples=200)
@given(small_programs(), st.integers(0, 99))
def test_a_program_of_runs_gives_the_bits_of_its_ops_one_by_one(drawn: tuple[Program, int], seed: int) -> None:
    p, holes = drawn
    inputs, numbers = inputs_of(p, seed), [0.75 - i for i in range(holes)]
    want = run(p, inputs, numbers, ENGINE.kernel)
    after = small_runs(p, RUNS)
    signs = all(ins.op.name not in CHOOSE for ins in p.instructions)
    table = KernelTable({n: ENGINE.kernel(kind) for n, kind in p.kinds.items()}, runs=RUNS)
    for a, b in zip(straight_line(after, table)(list(inputs), *numbers), want):
        same(a, b, signs)
    for a, b in zip(run(after, inputs, numbers, ENGINE.kernel), want):
        same(a, b, signs)


class OneByOne:
    """Runs of NumPy's kernels, of at most five instructions."""

    def is_step(self, ins: Instruction) -> bool:
        return not ins.op.updates and not ins.op.creates

    def begin(self) -> Any:
        left = iter([True] * 5)
        return lambda ins: next(left, False)

    def in_order(self, ins: Instruction) -> Any:
        values, holes = operands_in_order(ins)

        def kernel(*operands: Any) -> Any:
            given = dict(zip(holes, operands[len(values) :]))
            table = dict(zip(values, operands))
            for part in ins.parts:
                own = [
                    table[o] if i in part.kind.tensor_operands else given[o.index] if isinstance(o, Hole) else o
                    for i, o in enumerate(part.operands)
                ]
                made = NUMPY.kernel(part.kind)(*own)
                table.update(zip(part.results, made if len(part.results) > 1 else (made,)))
            found = [np.array(table[r]) for r in outlive(ins)]
            return found[0] if len(found) == 1 else found

        return kernel


@given(programs())
def test_joining_any_program_changes_nothing(p: Program) -> None:
    from programs import KINDS

    after = small_runs(p, OneByOne())
    (inputs, numbers), kernels = calls(p), {n: NUMPY.kernel(kind) for n, kind in KINDS.items()}
    want = run(p, *calls(p), NUMPY.kernel)
    for a, b in zip(straight_line(after, KernelTable(kernels, runs=OneByOne()))(inputs, *numbers), want):
        np.testing.assert_array_equal(a, b)
    assert not inputs, "the list is emptied, so that arrays end with their last use"


@pytest.mark.parametrize("name", ["min_at", "max_at", "argmin", "argmax"])
@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 65), st.booleans())
def test_extremes_and_their_places_are_pytorchs_with_ties_and_nan(name: str, seed: int, rows: int, n: int, nan: bool) -> None:
    rng, some = np.random.default_rng(seed), [0, -0.0, 1, -1, np.inf, -np.inf, 2, *[np.nan] * nan]
    a = torch.from_numpy(rng.choice(np.array(some, np.float32), (rows, n)))
    arg = name.startswith("arg")
    kind = kind_of(name, Spec((rows, n)), axis=(1,) if arg else 1, keepdims=False)
    other = kind_of("neg", Spec((rows, n)))
    body = [Instruction(1, other, (2,), (1,)), Instruction(2, kind, tuple(range(3, 3 + len(kind.outs))), (2,))]
    p = Program(40, 1, with_frees(body, {1, 3, 4}), tuple(range(3, 3 + len(kind.outs))), 0, ())
    after = small_runs(p, RUNS)
    assert after.instructions[0].in_order
    found = straight_line(after, KernelTable({}, runs=RUNS))([a])
    want = (getattr(torch, name)(-a, 1),) if arg else tuple(getattr(torch, name[:3])(-a, 1))
    for x, y in zip(found, want):
        same(x, y)


def joined(kind: Kind, *arrays: torch.Tensor) -> Any:
    """The result of a kind in a run, behind an op on its first operand that changes nothing."""
    one = kind_of("add", kind.ins[0], float)
    operands = (len(arrays) + 1, *range(2, len(arrays) + 1), *([1] * (len(kind.ins) - len(arrays))))
    body = [Instruction(1, one, (len(arrays) + 1,), (1, 0.0)), Instruction(2, kind, (90,), operands)]
    p = Program(40, len(arrays), with_frees(body, {90, *range(1, len(arrays) + 1)}), (90,), 0, ())
    after = small_runs(p, RUNS)
    assert after.instructions[0].in_order
    return straight_line(after, KernelTable({}, runs=RUNS))(list(arrays))[0]


@pytest.mark.parametrize("width", [1, 3, 8, 17])
def test_rows_are_picked_and_added_as_by_pytorch(width: int) -> None:
    a, source, index = torch.randn(6, width), torch.randn(40, width), torch.randint(0, 6, (40,))
    many = kind_of("index_add", Spec((6, width)), Spec((40,), int64), Spec((40, width)), int, axis=0)
    same(joined(many, a, index, source), torch.index_add(a, 0, index, source))
    picks = kind_of("embedding", Spec((6, width)), Spec((40,), int64), padding=-1)
    same(joined(picks, a, index), torch.nn.functional.embedding(index, a))
    places = torch.randint(0, width, (6, 2))
    same(joined(kind_of("gather", Spec((6, width)), Spec((6, 2), int64), axis=1), a, places), a.gather(1, places))
    grad = kind_of("gather_grad", Spec((6, 2)), Spec((6, 2), int64), shape=(6, width), axis=1)
    g = torch.randn(6, 2)
    same(joined(grad, g, places), torch.zeros(6, width).scatter_add(1, places, g))


@pytest.mark.parametrize("place", [-1, 6, 1 << 40, -(1 << 40)])
def test_a_place_outside_is_an_error(place: int) -> None:
    index = torch.tensor([0, place, 2])
    kinds = [
        kind_of("embedding", Spec((6, 3)), Spec((3,), int64), padding=-1),
        kind_of("index_add", Spec((6, 3)), Spec((3,), int64), Spec((3, 3)), int, axis=0),
    ]
    for kind, others in zip(kinds, ([index], [index, torch.ones(3, 3)])):
        with pytest.raises(IndexError, match="out of range"):
            joined(kind, torch.ones(6, 3), *others)


def test_numbers_past_float32_and_tensors_of_other_sizes_are_errors_and_a_negative_bit_is_resolved() -> None:
    kind = kind_of("mul", Spec((2,)), float)
    body = [Instruction(1, kind, (2,), (1, Hole(0))), Instruction(1, kind, (3,), (2, 0.5))]
    p = small_runs(Program(40, 1, with_frees(body, {1, 3}), (3,), 1, ()), RUNS)
    function = straight_line(p, KernelTable({}, runs=RUNS))
    with pytest.raises(OverflowError):
        function([torch.ones(2)], 1e300)
    for wrong in (torch.ones(3), torch.ones(1), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(ValueError, match="expected one of 8 bytes"):
            function([wrong], 1.0)
    negative = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    assert negative.is_neg() and function([negative], 4.0)[0].tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("dtype", [float32, int64, bool_, float64, bfloat16])
def test_a_small_load_is_a_copy_of_its_bytes(dtype: DType) -> None:
    spec = Spec((3, 5), dtype)
    sent = np.random.default_rng(0).integers(0, 2, spec.nbytes, np.uint8)
    made = ENGINE.load(sent.data, spec, True)
    given = sent.tobytes()
    sent[:] = 3
    assert tuple(made.shape) == spec.shape and made.dtype is TORCH[dtype] and made.untyped_storage().resizable()
    assert made.view(torch.uint8).numpy().tobytes() == given
    with pytest.raises(ValueError, match=f"expected one of {spec.nbytes - 1} bytes, got {spec.nbytes}"):
        ENGINE.load(sent.data[1:], spec, True)


@pytest.mark.parametrize("name", sorted(OWN))
def test_own_kernels_are_as_near_to_the_exact_result_as_pytorchs(name: str) -> None:
    draw = torch.Generator().manual_seed(3)
    x, y, w = (torch.randn(shape, generator=draw) for shape in ((33, 19), (33, 19), (7, 19)))
    x, g = 4 * x, Spec((33, 19))
    ins, statics, operands = {
        "sum": ((g,), {"axis": (1,), "keepdims": False}, (x,)),
        "mean": ((g,), {"axis": (0,), "keepdims": True}, (x,)),
        "norm": ((g,), {"axis": (0, 1), "order": 2.0, "keepdims": False}, (x,)),
        "linear_bias_grad": ((g,), {}, (x,)),
        "matmul": ((g, Spec((19, 7))), {}, (x, w.t())),
        "linear": ((g, Spec((7, 19)), Spec((7,))), {}, (x, w, w[:, 0])),
        "linear_weight_grad": ((g, g), {}, (x, y)),
        "sqrt": ((g,), {}, (x.abs(),)),
        "softplus": ((g, float, float), {}, (x, 1.5, 4.0)),
        "softplus_grad": ((g, g, float, float), {}, (y, x, 1.5, 4.0)),
        "softmax": ((g,), {"axis": 1}, (x,)),
        "log_softmax": ((g,), {"axis": 1}, (x,)),
        "softmax_grad": ((g, g), {"axis": 1}, (x, y.softmax(1))),
        "log_softmax_grad": ((g, g), {"axis": 1}, (x, y.log_softmax(1))),
    }.get(name, ((g,) * (2 if name.endswith("_grad") else 1), {}, (x, y) if name.endswith("_grad") else (x,)))
    kind = kind_of(name, *ins, **statics)
    assert RUNS.is_own(kind)
    wide = kind_of(name, *(Spec(s.shape, float64) if isinstance(s, Spec) else s for s in ins), **statics)
    exact = NUMPY.kernel(wide)(*(a.double().numpy() if isinstance(a, torch.Tensor) else a for a in operands))
    scale = np.maximum(np.abs(exact), np.abs(exact).max() / 4)
    ours, theirs = (np.abs(f(*operands).numpy() - exact) / scale for f in (ENGINE.kernel(kind), ENGINE.plain(kind)))
    assert ours.max() <= max(2 * theirs.max(), 6e-7)


@pytest.mark.parametrize(
    "first, second", [((33, 19), (19,)), ((19,), (19, 7)), ((19,), (19,)), ((1, 19), (19,)), ((1,), (1, 1))]
)
def test_products_of_vectors_are_as_near_to_the_exact_result_as_pytorchs(first: Any, second: Any) -> None:
    draw = torch.Generator().manual_seed(5)
    a, b = torch.randn(first, generator=draw), torch.randn(second, generator=draw)
    kind, exact = kind_of("matmul", Spec(first), Spec(second)), (a.double() @ b.double()).numpy()
    assert RUNS.is_own(kind)
    ours, theirs = (f(a, b).numpy() for f in (ENGINE.kernel(kind), ENGINE.plain(kind)))
    assert ours.shape == theirs.shape
    assert np.abs(ours - exact).max() <= max(2 * np.abs(theirs - exact).max(), 6e-7 * max(1, np.abs(exact).max()))


@given(st.integers(1, 20), st.integers(1, 70), st.integers(1, 40), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_products_of_any_shape_and_strides_are_exact_in_whole_numbers(
    m: int, k: int, n: int, columns_first: bool, turned: bool, has_bias: bool
) -> None:
    """Rows are taken by eights, fours and ones, columns by sixteens, or terms lane by lane."""
    rng = np.random.default_rng([m, k, n])
    a, b, bias = (rng.integers(-8, 9, shape).astype("f4") for shape in ((m, k), (k, n), (n,)))
    builder = RunBuilder()
    given = [builder.input(Spec(array.shape)) for array in (a, b, bias)[: 2 + has_bias]]
    out = builder.new(Spec((m, n)))
    builder.emit("product", out, given, (m, k, n, *((1, m) if columns_first else (k, 1)), *((1, k) if turned else (n, 1))))
    plan = builder.plan([builder.result(out, Spec((m, n)))], (m * n * 4,))
    stored = a.T if columns_first else a, b.T if turned else b, *([bias] if has_bias else [])
    found = np.frombuffer(NATIVE.run(plan, *[array.tobytes() for array in stored]), "f4").reshape(m, n)
    assert (found == a @ b + (bias if has_bias else 0)).all()


def test_functions_at_their_ends() -> None:
    x = torch.tensor([0.0, -0.0, 1e-30, 88.7, 88.8, -87, -103, -105, float("inf"), -float("inf"), float("nan"), 1e38, -1e38])
    for name in ("exp", "tanh", "sigmoid"):
        kind = kind_of(name, Spec((len(x),)))
        ours, theirs = ENGINE.kernel(kind)(x), getattr(torch, name)(x.double())
        torch.testing.assert_close(ours, theirs.float(), rtol=3e-7, atol=3e-45, equal_nan=True)


def test_every_step_has_a_kernel_in_c_and_every_row_of_a_step_exists() -> None:
    assert not set(EXACT) & set(OWN) and all(row(name) for name in ALL)
