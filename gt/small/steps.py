"""The steps of rows in a run. A function of a builder, a kind and the views of the operands emits them and returns the views of
the results, or raises Unfit; it relies on shapes only after it has compared them with the kind's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.ops import Kind
from gt.ops.movement import contiguous_strides
from gt.program import Hole, Instruction
from gt.small import NATIVE
from gt.small.plan import MOST, RunBuilder, Unfit, View
from gt.spec import Spec, bool_, float32, int64

Steps = Callable[..., Sequence[View]]
DEEPEST = 0 if NATIVE is None else NATIVE.DEEPEST  # most terms of a product's sums
WORK = 1 << 18  # most multiplications of a product


def _want(condition: bool, what: str = "shapes without a step") -> None:
    if not condition:
        raise Unfit(what)


def _elementwise(op: str, dtype: Any = float32, *given: Any) -> Steps:
    """A loop over operands of one dtype, or of the dtypes `given`."""

    def steps(b: RunBuilder, kind: Kind, *views: View) -> Sequence[View]:
        _want([v.dtype for v in views] == list(given or [float32] * len(views)) and kind.outs[0].dtype is dtype, "dtypes")
        _want(not kind.settings)
        return (b.elementwise(op, kind.outs[0], *views),)

    return steps


def _clamp(b: RunBuilder, kind: Kind, *views: View) -> Sequence[View]:
    _want(len(views) == 3 and all(v.dtype is float32 for v in views))
    return (b.elementwise("clamped", kind.outs[0], *views),)


def _of_square(op: str) -> Steps:
    """Of the power 2: the number is the last operand."""

    def steps(b: RunBuilder, kind: Kind, *views: View) -> Sequence[View]:
        *tensors, power = views
        _want(b.slots[power.slot].number == 2 and all(v.dtype is float32 and v.shape == kind.outs[0].shape for v in tensors))
        return (b.elementwise(op, kind.outs[0], *tensors),)

    return steps


def _softplus(b: RunBuilder, kind: Kind, a: View, scale: View, threshold: View) -> Sequence[View]:
    _want(a.dtype is float32)
    return (b.elementwise("soft_pluses", kind.outs[0], a, scale, threshold),)


def _softplus_grad(b: RunBuilder, kind: Kind, g: View, a: View, scale: View, threshold: View) -> Sequence[View]:
    """g where a * scale is past the threshold, else g times the sigmoid of a * scale."""
    out = kind.outs[0]
    _want(g.dtype is float32 and a.dtype is float32 and g.shape == a.shape == out.shape)
    scaled = b.elementwise("products", out, a, scale)
    part = b.elementwise("products", out, g, b.elementwise("sigmoids", out, scaled))
    past = b.elementwise("greater", Spec(out.shape, bool_), scaled, threshold)
    return (b.elementwise("chosen", out, past, g, part),)


def _reduced(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, int, int]:
    """The sizes before, of and behind the reduced axes, which have to be neighbours."""
    kept = [i for i, n in enumerate(shape) if n != 1]
    found = [i for i in kept if i in axes]
    _want(all(-len(shape) <= i < len(shape) and i >= 0 for i in axes))
    if not found:
        return Spec(shape).numel, 1, 1
    first, last = found[0], found[-1]
    _want([i for i in kept if first <= i <= last] == found, "axes apart")
    return Spec(shape[:first]).numel, Spec(shape[first : last + 1]).numel, Spec(shape[last + 1 :]).numel


def _sum(b: RunBuilder, kind: Kind, a: View, *, mean: bool = False, axes: Sequence[int] | None = None) -> Sequence[View]:
    outer, n, inner = _reduced(a.shape, kind.settings["axis"] if axes is None else axes)
    _want(a.dtype is float32 and kind.outs[0].dtype is float32 and kind.outs[0].numel == outer * inner)
    out = b.new(kind.outs[0])
    b.emit("sums_along", out, [b.contiguous(a)], (outer, n, inner, int(mean)))
    return (out,)


def _mean(b: RunBuilder, kind: Kind, a: View) -> Sequence[View]:
    return _sum(b, kind, a, mean=True)


def _bias_grad(b: RunBuilder, kind: Kind, g: View) -> Sequence[View]:
    return _sum(b, kind, g, axes=range(len(g.shape) - 1))


def _norm(b: RunBuilder, kind: Kind, a: View) -> Sequence[View]:
    axes, order = kind.settings["axis"], kind.settings["order"]
    _want(a.dtype is float32 and kind.outs[0].dtype is float32)
    _want(order == 2 and kind.outs[0].numel == 1 and len(axes) == len(a.shape))
    out = b.new(kind.outs[0])
    b.emit("norm", out, [b.contiguous(a)], (a.numel,))
    return (out,)


def _extreme(op: str, values: bool) -> Steps:
    """The extremes of a short last axis, and their places."""

    def steps(b: RunBuilder, kind: Kind, a: View) -> Sequence[View]:
        axis = kind.settings["axis"]
        axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
        _want(isinstance(axis, int) and bool(a.shape) and axis == len(a.shape) - 1 and a.dtype is float32)
        n = a.shape[-1]
        _want(a.numel == kind.outs[0].numel * n)
        made = [b.new(spec) for spec in kind.outs]
        sizes = (kind.outs[0].numel, n, int(not values))
        if values:
            _want([v.dtype for v in made] == [float32, int64])
            b.emit(op, made[0], [b.contiguous(a)], sizes, made[1])
        else:
            _want([v.dtype for v in made] == [int64])
            b.emit(op, made[0], [b.contiguous(a)], sizes)
        return made

    return steps


def _softmax(op: str, logarithms: bool) -> Steps:
    def steps(b: RunBuilder, kind: Kind, *views: View) -> Sequence[View]:
        shape = kind.outs[0].shape
        _want(bool(shape) and kind.settings["axis"] == len(shape) - 1 and kind.outs[0].dtype is float32)
        _want(all(v.dtype is float32 and v.shape == shape for v in views))
        out = b.new(kind.outs[0])
        b.emit(op, out, [b.contiguous(v) for v in views], (out.numel // shape[-1], shape[-1], int(logarithms)))
        return (out,)

    return steps


def _pick(b: RunBuilder, kind: Kind, a: View, places: View) -> Sequence[View]:
    """Rows of a table, which may be large."""
    _want(kind.settings.get("axis", 0) == 0 and bool(a.shape) and a.dtype is float32 and places.dtype is int64)
    width = Spec(a.shape[1:]).numel
    _want(a.shape[0] > 0 and kind.outs[0].numel == places.numel * width and kind.outs[0].dtype is float32)
    _want(a.is_contiguous and places.is_contiguous)
    out = b.new(kind.outs[0])
    b.emit("picked_rows", out, [a, places], (places.numel, a.shape[0], width))
    return (out,)


def _add_rows(b: RunBuilder, kind: Kind, a: View, places: View, source: View, alpha: View) -> Sequence[View]:
    _want(kind.settings["axis"] == 0 and bool(a.shape) and b.slots[alpha.slot].number == 1)
    _want([a.dtype, places.dtype, source.dtype] == [float32, int64, float32] and places.is_contiguous)
    width = Spec(a.shape[1:]).numel
    _want(kind.outs[0].shape == a.shape and a.numel <= MOST and source.numel == places.numel * width)
    out = b.new(kind.outs[0])
    b.emit("added_rows", out, [b.contiguous(a), places, b.contiguous(source)], (places.numel, a.shape[0], width))
    return (out,)


def _along_rows(step: str, scatters: bool) -> Steps:
    """Gather or scatter along the last axis, for each row as many as the index has."""

    def steps(b: RunBuilder, kind: Kind, a: View, places: View) -> Sequence[View]:
        whole, part = (a.shape, kind.outs[0].shape) if not scatters else (kind.outs[0].shape, a.shape)
        _want(bool(whole) and kind.settings["axis"] == len(whole) - 1 and places.shape == part)
        _want(len(part) == len(whole) and part[:-1] == whole[:-1])
        _want(a.dtype is float32 and places.dtype is int64 and kind.outs[0].dtype is float32 and places.is_contiguous)
        out = b.new(kind.outs[0])
        b.emit(step, out, [b.contiguous(a), places], (Spec(whole[:-1]).numel, whole[-1], part[-1]))
        return (out,)

    return steps


def _product(
    b: RunBuilder, kind: Kind, a: View, c: View, m: int, k: int, n: int, strides: tuple[int, int, int, int],
    bias: View | None = None,
) -> Sequence[View]:  # fmt: skip
    """`strides`: of the first factor's rows and terms, of the second's terms and columns."""
    _want(0 < k <= DEEPEST and m * k * n <= WORK and kind.outs[0].numel == m * n and not kind.precision)
    views = [a, c, *([] if bias is None else [bias])]
    _want(all(v.dtype is float32 for v in views) and kind.outs[0].dtype is float32)
    out = b.new(kind.outs[0])
    b.emit("product", out, views, (m, k, n, *strides))
    return (out,)


def _matmul(b: RunBuilder, kind: Kind, a: View, c: View) -> Sequence[View]:
    """Of matrices or vectors: a vector is one row of the first factor, or one column of the second."""
    _want(0 < len(a.shape) <= 2 and 0 < len(c.shape) <= 2 and a.shape[-1] == c.shape[0])
    (m, down), (n, along) = ((1, 0) if len(v.shape) == 1 else (v.shape[at], v.strides[at]) for v, at in ((a, 0), (c, 1)))
    return _product(b, kind, a, c, m, a.shape[-1], n, (down, a.strides[-1], c.strides[0], along))


def _linear(b: RunBuilder, kind: Kind, x: View, w: View, *bias: View) -> Sequence[View]:
    _want(len(w.shape) == 2 and len(x.shape) >= 1 and x.shape[-1] == w.shape[1])
    x, (n, k) = b.contiguous(x), w.shape
    added = b.contiguous(bias[0]) if bias else None
    _want(added is None or added.shape == (n,))
    return _product(b, kind, x, w, x.numel // k, k, n, (k, 1, w.strides[1], w.strides[0]), added)


def _weight_grad(b: RunBuilder, kind: Kind, g: View, x: View) -> Sequence[View]:
    _want(len(g.shape) == len(x.shape) >= 1 and g.shape[:-1] == x.shape[:-1])
    g, x, m, n = b.contiguous(g), b.contiguous(x), g.shape[-1], x.shape[-1]
    return _product(b, kind, g, x, m, g.numel // m, n, (1, m, n, 1))


def _cat(b: RunBuilder, kind: Kind, *views: View) -> Sequence[View]:
    axis, out = kind.settings["axis"], b.new(kind.outs[0])
    shape, at = out.shape, 0
    _want(0 <= axis < len(shape) and all(v.dtype is float32 for v in views) and out.dtype is float32)
    outer, behind = Spec(shape[:axis]).numel, Spec(shape[axis + 1 :]).numel
    for view in views:
        _want(len(view.shape) == len(shape) and view.numel == outer * view.shape[axis] * behind)
        block = view.shape[axis] * behind
        if block:
            b.emit("joined", out, [b.contiguous(view)], (outer, block, shape[axis] * behind, at))
        at += block
    _want(at == shape[axis] * behind)
    return (out,)


def _roll(b: RunBuilder, kind: Kind, a: View, *shifts: View) -> Sequence[View]:
    """By numbers that do not change: a step for each axis."""
    axes = kind.settings["axes"]
    _want(a.dtype is float32 and len(axes) == len(shifts) and all(0 <= axis < len(a.shape) for axis in axes))
    for axis, shift in zip(axes, shifts):
        number, n = b.slots[shift.slot].number, a.shape[axis]
        _want(number is not None and number == int(number))
        a, out = b.contiguous(a), b.new(Spec(a.shape))
        outer, behind = Spec(a.shape[:axis]).numel, Spec(a.shape[axis + 1 :]).numel
        b.emit("rolled", out, [a], (outer, n, behind, int(number or 0) % n))
        a = out
    _want(bool(axes))
    return (a,)


def _reshape(b: RunBuilder, kind: Kind, a: View) -> Sequence[View]:
    a, shape = b.contiguous(a), kind.outs[0].shape
    _want(Spec(shape).numel == a.numel)
    return (a._replace(shape=shape, strides=contiguous_strides(shape)),)


def _permute(b: RunBuilder, kind: Kind, a: View) -> Sequence[View]:
    axes = kind.settings["axes"]
    _want(sorted(axes) == list(range(len(a.shape))))
    return (a._replace(shape=kind.outs[0].shape, strides=tuple([a.strides[i] for i in axes])),)


def _slice(b: RunBuilder, kind: Kind, a: View, *starts: View) -> Sequence[View]:
    """From numbers that do not change: a view of each axis from one place on, or of one place, whose axis is left out."""
    take, at = kind.settings["take"], 0
    _want(len(take) == len(starts) == len(a.shape))
    shape, strides = [], []
    for start, (size, step), n, stride in zip(starts, take, a.shape, a.strides):
        number = b.slots[start.slot].number
        _want(number is not None and number == int(number))
        first, last = int(number or 0), int(number or 0) + (size - 1) * step * (size > 0)
        _want(size != 0 and 0 <= first < n and 0 <= last < n)
        at += first * stride
        if size > 0:
            shape.append(size)
            strides.append(step * stride)
    return (b.part(a, at)._replace(shape=tuple(shape), strides=tuple(strides)),)


def _expanded(a: View, shape: tuple[int, ...]) -> View:
    lead = len(shape) - len(a.shape)
    _want(lead >= 0 and all(n in (1, m) for n, m in zip(a.shape, shape[lead:])))
    strides = (0,) * lead + tuple([0 if n == 1 else s for n, s in zip(a.shape, a.strides)])
    return a._replace(shape=shape, strides=strides)


def _expand(b: RunBuilder, kind: Kind, a: View) -> Sequence[View]:
    return (_expanded(a, kind.outs[0].shape),)


def _spread(b: RunBuilder, kind: Kind, g: View, *scale: View) -> Sequence[View]:
    shape, axes = kind.outs[0].shape, kind.settings["axis"]
    _want(g.dtype is float32)
    if scale:
        g = b.elementwise("products", Spec(g.shape, float32), g, scale[0])
    ones = tuple([1 if i in axes else n for i, n in enumerate(shape)])
    g = b.contiguous(g)
    _want(Spec(ones).numel == g.numel)
    return (_expanded(g._replace(shape=ones, strides=contiguous_strides(ones)), shape),)


# Rows whose steps round as PyTorch does: they run by steps in a run of several, and by PyTorch alone.
EXACT: dict[str, Steps] = {
    "add": _elementwise("sums"), "sub": _elementwise("differences"), "mul": _elementwise("products"),
    "div": _elementwise("quotients"), "maximum": _elementwise("larger"), "minimum": _elementwise("smaller"),
    "neg": _elementwise("negate"), "abs": _elementwise("absolute"), "square": _elementwise("square"),
    "reciprocal": _elementwise("inverse"), "relu": _elementwise("positive_part"),
    "relu_grad": _elementwise("positive_gradients"),
    "eq": _elementwise("equal", bool_), "ne": _elementwise("unequal", bool_), "lt": _elementwise("less", bool_),
    "le": _elementwise("at_most", bool_), "gt": _elementwise("greater", bool_), "ge": _elementwise("at_least", bool_),
    "bitwise_and": _elementwise("both", bool_, bool_, bool_), "bitwise_or": _elementwise("either", bool_, bool_, bool_),
    "bitwise_xor": _elementwise("one_of_two", bool_, bool_, bool_), "bitwise_not": _elementwise("not_true", bool_, bool_),
    "where": _elementwise("chosen", float32, bool_, float32, float32), "clamp": _clamp,
    "pow": _of_square("square"), "pow_grad": _of_square("square_gradients"),
    "min_at": _extreme("least", True), "max_at": _extreme("most", True),
    "argmin": _extreme("least", False), "argmax": _extreme("most", False),
    "embedding": _pick, "index_select": _pick, "index_add": _add_rows,
    "gather": _along_rows("gathered", False), "gather_grad": _along_rows("scattered", True), "cat": _cat, "roll": _roll,
}  # fmt: skip
VIEWS: dict[str, Steps] = {"slice": _slice, "reshape": _reshape, "permute": _permute, "expand": _expand, "spread": _spread}
# Rows whose steps may round otherwise: they run by these everywhere, so that a program gives the bits of its ops one by one.
OWN: dict[str, Steps] = {
    "sqrt": _elementwise("square_root"),  # MKL's, which PyTorch takes on x86-64, is off by one in the last place now and then
    "exp": _elementwise("exponentials"), "tanh": _elementwise("tangents"), "sigmoid": _elementwise("sigmoids"),
    "tanh_grad": _elementwise("tangent_gradients"), "sigmoid_grad": _elementwise("sigmoid_gradients"),
    "softplus": _softplus, "softplus_grad": _softplus_grad,
    "sum": _sum, "mean": _mean, "norm": _norm, "linear_bias_grad": _bias_grad,
    "softmax": _softmax("softmax", False), "log_softmax": _softmax("softmax", True),
    "softmax_grad": _softmax("softmax_gradient", False), "log_softmax_grad": _softmax("softmax_gradient", True),
    "matmul": _matmul, "linear": _linear, "linear_weight_grad": _weight_grad,
}  # fmt: skip
ALL = {**EXACT, **VIEWS, **OWN}


def emit(b: RunBuilder, ins: Instruction, views: dict[int, View], numbers: dict[int, View]) -> None:
    """The steps of an instruction; `views` has its values, and gets its results. `numbers` has the holes."""
    make = ALL.get(ins.op.name)
    if make is None:
        raise Unfit(f"no step for {ins.op.name}")
    operands = []
    for i, (operand, spec) in enumerate(zip(ins.operands, ins.kind.ins)):
        if type(spec) is Spec:
            if not spec.numel or spec.numel > MOST and (i or make is not _pick):
                raise Unfit("an empty or a large tensor")
            operands.append(views[operand])
        elif spec is bool:
            raise Unfit("a truth for a number")
        elif type(operand) is Hole:
            if operand.index not in numbers:
                numbers[operand.index] = b.hole()
            operands.append(numbers[operand.index])
        else:
            operands.append(b.number(operand))
    made = make(b, ins.kind, *operands)
    if [(v.shape, v.dtype) for v in made] != [(spec.shape, spec.dtype) for spec in ins.kind.outs]:
        raise Unfit("other results than the row's")
    for view in made:
        b.check(view)
    views.update(zip(ins.results, made))
