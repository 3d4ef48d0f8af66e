"""PyTorch's own samples as an oracle: each entry of its `op_db` called in PyTorch and in GT, results and gradients compared.

An entry is called by its Python name. Where PyTorch's entry is a small function of its test suite (`where`, `einsum`, `.T`),
that function is called with `gt` in the place of `torch`. Random results, which drew from PyTorch's generator, are
compared by shape and dtype."""

from __future__ import annotations

import functools
import itertools
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import gt
from gt.spec import REPLICATE, Layout, Mesh, Placement, Shard, Spec, dtype_of
from gt.testing import Cluster
from gt.worker.engine.torch.dtypes import TORCH
from tests.memory.layouts import put as put_laid_out

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

# Each sample looks for the unittest that asked for it, by source files of the whole stack. There is none, and it takes longer
# than all else that is done with the sample.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

# Memory that nothing wrote to: only shape and dtype are anybody's promise.
UNWRITTEN = {
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "empty_permuted",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
# Entries that cast: a float that the integer dtype cannot hold is undefined in C, and processors make different things of it.
CASTS = {"byte", "char", "short", "int", "long", "to"}
FORWARD, GRADIENT = (1e-4, 1e-5), (1e-3, 1e-4)  # relative; and absolute, as a share of the largest value
HALF = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def resolve(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part, None)
        if root is None:
            return None
    return root


def named(namespace: Any, name: str) -> Any:
    """`torch.name`, or the method of that name."""
    found = resolve(namespace, name)
    return found if callable(found) else getattr(namespace.Tensor, name, None)


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def public(op: Any) -> bool:
    """Whether users can call it: no name of PyTorch's insides, and no in-place method listed without its underscore."""
    inside = op.name.startswith("torch.") or op.name.startswith("_") and not op.name.startswith("__")
    return not inside and named(torch, op.name) is not None


def sample_dtype(op: Any) -> Any:
    wanted = (torch.float32, torch.int64, torch.bool, torch.complex64)
    return next((d for d in wanted if d in op.dtypes), None)


ENTRIES = [op for op in op_db if public(op) and sample_dtype(op) is not None]
# The names that PyTorch has for floats, over which the totals are counted. A name is right when all its entries are.
FLOAT_NAMES = list(dict.fromkeys(op.name for op in ENTRIES if torch.float32 in op.dtypes))


def rebound(f: Callable, namespace: Any) -> Callable:
    """A function of PyTorch's test suite with another module in the place of `torch`."""
    if isinstance(f, functools.partial):
        return functools.partial(rebound(f.func, namespace), *f.args, **f.keywords)
    if not isinstance(f, types.FunctionType) or not f.__module__.startswith("torch.testing"):
        return f
    names = {**f.__globals__, "torch": namespace, "wrapper_set_seed": lambda op, *args, **kwargs: op(*args, **kwargs)}
    made = types.FunctionType(f.__code__, names, f.__name__, f.__defaults__, f.__closure__)
    made.__kwdefaults__ = f.__kwdefaults__
    return made


class Unsupported(Exception):
    """A sample that GT cannot be handed: its tensors are sparse, or of a dtype GT lacks."""


class PyTorch:
    """One side of the comparison."""

    namespace: Any = torch
    tensor: Any = torch.Tensor

    def put(self, t: torch.Tensor) -> Any:
        return t.detach().clone().requires_grad_(t.requires_grad)

    def read(self, t: Any) -> torch.Tensor:
        return t.detach()

    def translate(self, value: Any) -> Any:
        """The arguments that are no tensors: dtypes, devices, layouts."""
        return value

    def call(self, op: Any) -> Callable:
        found = rebound(op.op, torch)
        return found if found is not op.op else op.op


class GT(PyTorch):
    """GT in this thread; over several workers its inputs lie in pieces, along another axis for each input and sample."""

    namespace, tensor = gt, (gt.Tensor, gt.sparse.SparseTensor)

    def __init__(self, made: Cluster) -> None:
        self.made, self.turn = made, itertools.count()

    def put(self, t: torch.Tensor) -> Any:
        if t.layout is torch.sparse_csr and t.ndim == 2:
            parts = [gt.tensor(p.detach()) for p in (t.crow_indices(), t.col_indices(), t.values())]
            return gt.sparse_csr_tensor(*parts, tuple(t.shape), requires_grad=t.requires_grad)
        if t.layout is not torch.strided:
            raise Unsupported(f"{t.layout} tensors")
        try:
            dtype = dtype_of(t.dtype)
        except TypeError as wrong:
            raise Unsupported(str(wrong)) from None
        plain = t.detach().resolve_conj().resolve_neg()
        if len(self.made.workers) == 1:
            return gt.tensor(plain, dtype=dtype, requires_grad=t.requires_grad)
        array = (plain.float() if t.dtype is torch.bfloat16 else plain).contiguous().numpy()
        spec = Spec(tuple(t.shape), dtype)
        choices: list[Placement] = [*(Shard(i) for i in range(t.ndim)), REPLICATE]
        workers = len(self.made.workers)
        layout = Layout(Mesh((workers,), tuple(range(workers))), (choices[next(self.turn) % len(choices)],))
        return put_laid_out(self.made, array, spec, layout, t.requires_grad)

    def read(self, t: Any) -> torch.Tensor:
        if isinstance(t, gt.sparse.SparseTensor):
            t = t.to_dense()
        found = torch.from_numpy(t.detach().numpy().copy())
        return found.to(TORCH[t.dtype])

    def translate(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            try:
                return dtype_of(value)
            except TypeError as wrong:
                raise Unsupported(str(wrong)) from None
        if isinstance(value, torch.device):
            return gt.device(str(value))
        if isinstance(value, (torch.layout, torch.memory_format)):
            if not hasattr(gt, str(value).removeprefix("torch.")):
                raise Unsupported(f"{value} tensors")
            return getattr(gt, str(value).removeprefix("torch."))
        if isinstance(value, torch.nn.Module):
            return getattr(gt.nn, type(value).__name__)()
        if isinstance(value, types.FunctionType) and value.__module__ == "torch.nn.functional":
            return getattr(gt.nn.functional, value.__name__)
        return rebound(value, gt) if isinstance(value, types.FunctionType) else value

    def call(self, op: Any) -> Callable:
        function = rebound(op.op, gt)
        if function is op.op:
            function = named(gt, op.name)
        if function is None:
            raise AttributeError(f"GT has no {op.name}")
        return function


def mapped(value: Any, f: Callable[[Any], Any]) -> Any:
    """`f` of every leaf of lists, tuples and dictionaries."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        parts = [mapped(v, f) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: mapped(v, f) for k, v in value.items()}
    return f(value)


def leaves(value: Any) -> list:
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in leaves(v)]
    return [leaf for v in value.values() for leaf in leaves(v)] if isinstance(value, dict) else [value]


@dataclass
class Outcome:
    """The outcome of one side: values (PyTorch's tensors or plain), whether each requires gradients, and the gradients."""

    values: list = field(default_factory=list)
    wants: list[bool] = field(default_factory=list)
    gradients: list = field(default_factory=list)
    error: BaseException | None = None


def arguments(side: PyTorch, sample: Any) -> tuple[Any, tuple, dict, list]:
    """The sample's input, arguments and keyword arguments on this side, and those tensors among them that want gradients."""
    tensors: list = []

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return side.translate(value)
        made = side.put(value)
        if value.requires_grad:
            tensors.append(made)
        return made

    return mapped(sample.input, put), mapped(tuple(sample.args), put), mapped(dict(sample.kwargs), put), tensors


def weights(like: torch.Tensor) -> torch.Tensor:
    """One weight for each element of a result, so that no gradient is right by symmetry."""
    return torch.cos(torch.arange(like.numel(), dtype=torch.float64)).reshape(like.shape).to(like.dtype)


def forward(side: PyTorch, op: Any, sample: Any, call: Callable | None = None) -> tuple[list, list]:
    call = call or side.call(op)
    given, args, kwargs, tensors = arguments(side, sample)
    result = call(given, *args, **kwargs)
    process = getattr(sample, "output_process_fn_grad", None)
    if process is not None:
        result = rebound(process, side.namespace)(result)
    return leaves(result), tensors


def evaluate(side: PyTorch, op: Any, sample: Any, gradients: bool, call: Callable | None = None) -> Outcome:
    """Call the op on this side. An error is an outcome too, for the other side to have as well."""
    outcome = Outcome()
    try:
        results, tensors = forward(side, op, sample, call)
        for result in results:
            is_tensor = isinstance(result, side.tensor)
            outcome.values.append(side.read(result) if is_tensor else result)
            outcome.wants.append(is_tensor and bool(result.requires_grad))
        if gradients and tensors and any(outcome.wants):
            terms = [
                (r.real * side.put(weights(v).real) if v.is_complex() else r * side.put(weights(v))).sum()
                for r, v, w in zip(results, outcome.values, outcome.wants) if w
            ]  # fmt: skip
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            total.backward()
            outcome.gradients = [None if t.grad is None else side.read(t.grad) for t in tensors]
    except Unsupported:
        raise
    except Exception as wrong:  # noqa: BLE001 - the error of a call is compared with the other side's
        outcome.error = wrong
    return outcome


def close(found: Any, want: Any, tolerance: tuple[float, float], values: bool = True) -> str:
    """The fault of a result, or nothing."""
    if not isinstance(want, torch.Tensor) or not isinstance(found, torch.Tensor):
        if isinstance(found, torch.Tensor) is not isinstance(want, torch.Tensor):
            return f"{type(found).__name__}, PyTorch gives {type(want).__name__}"
        if isinstance(want, float) and isinstance(found, float):
            want, found = torch.tensor(want, dtype=torch.float64), torch.tensor(found, dtype=torch.float64)
        elif isinstance(want, (torch.dtype, torch.device, torch.layout)) or not values:
            return ""
        else:
            return "" if found == want else f"{found!r}, PyTorch gives {want!r}"
    if want.layout is not torch.strided:
        want = want.to_dense()
    if found.layout is not torch.strided:
        found = found.to_dense()
    if found.shape != want.shape:
        return f"shape {tuple(found.shape)}, PyTorch gives {tuple(want.shape)}"
    if found.dtype != want.dtype:
        return f"dtype {found.dtype}, PyTorch gives {want.dtype}"
    if not values:
        return ""
    if not (want.is_floating_point() or want.is_complex()):
        return "" if torch.equal(found, want) else f"values {_head(found)}, PyTorch gives {_head(want)}"
    finite = want[torch.isfinite(want)].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    coarse = HALF.get(want.dtype)
    relative, absolute = (coarse, coarse) if coarse else tolerance
    right = torch.isclose(found, want, rtol=relative, atol=absolute * scale, equal_nan=True)
    return "" if bool(right.all()) else f"values {_head(found[~right])}, PyTorch gives {_head(want[~right])}"


def _head(t: torch.Tensor) -> str:
    return str([round(v, 5) if isinstance(v, float) else v for v in t.flatten()[:4].tolist()])


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def compare(want: Outcome, found: Outcome, random: bool = False) -> str:
    """The first difference between PyTorch's outcome and another; empty when there is none."""
    if want.error is not None:
        if found.error is None:
            return f"accepted; PyTorch: {said(want.error)}"
        return "" if isinstance(found.error, type(want.error)) else f"{said(found.error)}; PyTorch: {said(want.error)}"
    if found.error is not None:
        return said(found.error)
    if len(found.values) != len(want.values):
        return f"{len(found.values)} results, PyTorch gives {len(want.values)}"
    for i, (f, w) in enumerate(zip(found.values, want.values)):
        if wrong := close(f, w, FORWARD, not random):
            return f"result {i}: {wrong}"
    if found.wants != want.wants:
        return f"results that want gradients: {found.wants}, PyTorch {want.wants}"
    for i, (f, w) in enumerate(zip(found.gradients, want.gradients)):
        if f is None and w is None:
            continue
        f = torch.zeros_like(w) if f is None else f
        w = torch.zeros_like(f) if w is None else w
        if wrong := close(f, w, GRADIENT, not random):
            return f"gradient {i}: {wrong}"
    return ""


def judge(op: Any, sample: Any, side: PyTorch, gradients: bool = True) -> str:
    """The fault of this side's outcome for a sample; empty for none. Where the difference is PyTorch's own rounding,
    its values in float64 decide."""
    want, random = wanted(op, sample, gradients)
    found = evaluate(side, op, sample, gradients)
    if op.name in CASTS:
        want, found = only_defined(sample.input, want), only_defined(sample.input, found)
    wrong = compare(want, found, random)
    if ": values" in wrong:
        wide, _ = wanted(op, _widened(sample), gradients)
        if wide.error is None and not compare(_narrowed(wide, want), found, random):
            return ""
    return wrong


def _whole(t: torch.Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex())


def only_defined(given: torch.Tensor, outcome: Outcome) -> Outcome:
    """The outcome of a cast with zeros for whatever the dtype of the result cannot hold."""

    def defined(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.shape != given.shape or value.dtype is torch.bool or _whole(given):
            return value
        if not _whole(value):
            return value
        cut, limits = torch.real(given.detach()).double().trunc(), torch.iinfo(value.dtype)
        return value.masked_fill(~((cut >= limits.min) & (cut < float(limits.max + 1))), 0)

    return replace(outcome, values=[defined(value) for value in outcome.values])


def _widened(sample: Any) -> Any:
    def wide(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float64 if value is torch.float32 else value
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    return sample.transform(wide)


def _narrowed(wide: Outcome, like: Outcome) -> Outcome:
    """In the dtypes of another outcome."""

    def narrow(values: list, others: list) -> list:
        return [v.to(o.dtype) if isinstance(v, torch.Tensor) and isinstance(o, torch.Tensor) else v
                for v, o in zip(values, others)]  # fmt: skip

    return Outcome(narrow(wide.values, like.values), wide.wants, narrow(wide.gradients, like.gradients))


def samples(op: Any, dtype: Any, count: int, requires_grad: bool = True) -> Iterator[Any]:
    """The first samples of an entry, the same every time."""
    grad = requires_grad and op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), count)


def wanted(op: Any, sample: Any, gradients: bool = True, call: Callable | None = None) -> tuple[Outcome, bool]:
    """PyTorch's outcome, and whether it is random: whether the call drew from PyTorch's generator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.get_rng_state()
        outcome = evaluate(PyTorch(), op, sample, gradients, call)
    return outcome, op.name in UNWRITTEN or not torch.equal(before, torch.get_rng_state())
