"""Making tensors: from data, of one value, of positions, at random."""

from __future__ import annotations

import math
import secrets
from itertools import count
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS, function, method
from gt.client.session import here
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.table import TABLE
from gt.spec import DType, Spec, bfloat16, complex64, dtype_of, float32, int64, scalar_dtype


def shape_of(size: tuple, shape: Any = None) -> tuple[int, ...]:
    """`randn(2, 3)`, `randn((2, 3))` and `randn(size=(2, 3))` mean the same."""
    if shape is not None:
        size = (shape,)
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    try:
        out = tuple(d.__index__() for d in size)
    except AttributeError:
        raise ArgumentTypeError(f"a shape is whole numbers, not {size}") from None
    if any(d < 0 for d in out):
        raise ArgumentError(f"a shape has no negative sizes: {out}")
    return out


def _made(t: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        if t.handle.spec.dtype.rank < 2:
            raise ArgumentTypeError(f"only floating-point and complex tensors have gradients, not {t.handle.spec.dtype.name}")
        t.requires_grad = True
    return t


@function
def tensor(
    data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor holding a copy of the data: numbers, nested lists, arrays.

    >>> gt.tensor([1, 2, 3, 4]) + gt.tensor([5, 6, 7, 8])
    tensor([ 6,  8, 10, 12])
    """
    if isinstance(data, Tensor):
        copied = Tensor(data.handle)
        return _made(copied if dtype is None else copied.to(dtype), requires_grad)
    if isinstance(data, (bool, int, float, complex)) and not isinstance(data, np.generic):
        return full((), data, dtype=dtype or scalar_dtype(data), requires_grad=requires_grad)
    array, found = _as_array(data)
    return _made(_loaded(array, dtype_of(dtype) if dtype is not None else found), requires_grad)


def _as_array(data: Any) -> tuple[np.ndarray, DType]:
    """The data as an array, and the dtype it stands for."""
    if type(data).__module__.split(".")[0] == "torch":
        if str(data.dtype) == "torch.bfloat16":
            return data.detach().float().numpy(), bfloat16
        data = data.detach().cpu().resolve_conj().resolve_neg().numpy()
    if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        data = [x.numpy() if isinstance(x, Tensor) else x for x in data]
    python = isinstance(data, (list, tuple))
    try:
        array = np.asarray(data)
    except ValueError as wrong:
        raise ArgumentError(f"cannot make a tensor of this: {wrong}") from None
    if array.dtype.kind not in "biufc":
        raise ArgumentTypeError(f"cannot make a tensor of {array.dtype} data: want numbers")
    if python and array.dtype in (np.float64, np.complex128):
        return array, float32 if array.dtype == np.float64 else complex64
    name = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "longdouble": "float64", "clongdouble": "complex128"}.get(
        array.dtype.name
    )
    return array, dtype_of(name or array.dtype.name)


def _loaded(array: np.ndarray, dtype: DType) -> Tensor:
    scope = here()
    spec = Spec(array.shape, dtype)
    if dtype is bfloat16:
        from gt.client.functions.read import to_bfloat16_bits

        array = to_bfloat16_bits(array)
    else:
        with np.errstate(invalid="ignore"):
            array = array.astype(dtype.name, copy=False)
    return Tensor(scope.session.load(array, spec, scope))


@function
def from_numpy(array: np.ndarray, requires_grad: bool = False) -> Tensor:
    """A tensor holding a copy of a NumPy array, of its dtype."""
    if not isinstance(array, (np.ndarray, np.generic)):
        raise ArgumentTypeError(f"from_numpy wants a NumPy array, not {type(array).__name__}: use gt.tensor")
    array, dtype = _as_array(array)
    return _made(_loaded(array, dtype), requires_grad)


@function
def full(
    size: Any, fill_value: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of one value."""
    kind = dtype_of(dtype) if dtype is not None else scalar_dtype(fill_value)
    shape = shape_of((size,)) if not isinstance(size, int) else (size,)
    value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    if isinstance(value, complex):
        made = apply(TABLE["full_complex"], (value.real, value.imag), (shape, kind.to_complex().code))
        return _made(made if kind.is_complex else made.to(kind), requires_grad)
    return _made(apply(TABLE["full"], (value,), (shape, kind.code)), requires_grad)


@function
def zeros(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return full(shape_of(dims, shape if size is None else size), 0, dtype=dtype or float32, requires_grad=requires_grad)


@function
def ones(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return full(shape_of(dims, shape if size is None else size), 1, dtype=dtype or float32, requires_grad=requires_grad)


@function
def arange(
    start: Any, end: Any = None, step: Any = 1, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Numbers from start (0) to end, end excluded."""
    if end is None:
        start, end = 0, start
    if step == 0 or not math.isfinite(end - start) or (end - start) * step < 0:
        raise ArgumentError(f"arange from {start} to {end} cannot go by steps of {step}")
    n = math.ceil((end - start) / step)
    kind = dtype_of(dtype) if dtype is not None else float32 if any(isinstance(x, float) for x in (start, end, step)) else int64
    first, by = (float(start), float(step)) if kind.rank == 2 else (int(start), int(step))
    return _made(apply(TABLE["iota"], (first, by), ((n,), (n,), (0,), kind.code)), requires_grad)


@function
def eye(
    n: int, m: int | None = None, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    shape = (n, n if m is None else m)
    return _made(apply(TABLE["eye"], (), (shape, shape, (0, 0), dtype_of(dtype or float32).code)), requires_grad)


@function
def manual_seed(seed: int) -> None:
    """Begin the random numbers of this session anew: the same seed gives the same numbers on any number of workers."""
    session = here().session
    session.seed, session.draws = int(seed) & (2**62 - 1), count(1)


class Generator:
    """Random numbers of a seed of one's own, apart from the session's."""

    def __init__(self, device: Any = None, layout: Any = None, pin_memory: bool = False) -> None:
        self.manual_seed(0x6D74)

    def manual_seed(self, seed: int) -> Generator:
        """Begin anew: the same seed gives the same numbers."""
        self.seed_, self.draws = int(seed) & (2**62 - 1), count(1)
        return self

    def seed(self) -> int:
        """Begin anew with a seed that nobody chose."""
        self.manual_seed(secrets.randbits(62))
        return self.seed_

    def initial_seed(self) -> int:
        return self.seed_


FUNCTIONS["Generator"] = Generator


@function
def initial_seed() -> int:
    """The seed that the session's random numbers began with."""
    return here().session.seed


@function
def seed() -> int:
    """Begin the session's random numbers anew with a seed that nobody chose."""
    manual_seed(secrets.randbits(62))
    return initial_seed()


def draw(name: str, shape: tuple[int, ...], dtype: Any, numbers: tuple = (), generator: Generator | None = None) -> Tensor:
    """A random op: a seed, the session's unless there is a generator, and a number of its own."""
    session = here().session
    mine = (session.seed, next(session.draws)) if generator is None else (generator.seed_, next(generator.draws))
    operands = (*mine, *numbers)
    return apply(TABLE[name], operands, (shape, shape, (0,) * len(shape), dtype_of(dtype).code))


def _complex_draw(name: str, shape: tuple[int, ...], dtype: Any, generator: Generator | None) -> Tensor:
    parts = [draw(name, shape, dtype_of(dtype).to_real(), generator=generator) for _ in range(2)]
    return apply(TABLE["complex"], tuple(parts))


def _float_dtype(dtype: Any) -> DType:
    kind = dtype_of(dtype or float32)
    if kind.rank != 2:
        raise ArgumentTypeError(f"random numbers of {kind.name} come from randint")
    return kind


@function
def rand(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random numbers, even over [0, 1)."""
    want = shape_of(dims, shape if size is None else size)
    if dtype is not None and dtype_of(dtype).is_complex:
        return _made(_complex_draw("uniform", want, dtype, generator), requires_grad)
    return _made(draw("uniform", want, _float_dtype(dtype), generator=generator), requires_grad)


@function
def randn(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random numbers of the standard normal distribution."""
    want = shape_of(dims, shape if size is None else size)
    if dtype is not None and dtype_of(dtype).is_complex:
        return _made(_complex_draw("normal", want, dtype, generator) * math.sqrt(0.5), requires_grad)
    return _made(draw("normal", want, _float_dtype(dtype), generator=generator), requires_grad)


@function
def randint(
    low: int, high: Any = None, size: Any = None, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random whole numbers from low (0) up to, not including, high."""
    if size is None and isinstance(high, (tuple, list)):
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if high <= low:
        raise ArgumentError(f"randint from {low} to {high}: want a low below the high")
    return draw("integers", shape_of((size,)), dtype or int64, (int(low), int(high)), generator)


@function
def empty(
    *size: Any, dtype: Any = None, requires_grad: bool = False, shape: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor to be filled: zeros, since nothing is gained by leaving it undefined."""
    return zeros(*size, dtype=dtype, requires_grad=requires_grad, shape=shape)


@function
def linspace(
    start: float, end: float, steps: int, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """So many numbers from start to end, both included, at equal distances."""
    if not isinstance(steps, int) or steps < 0:
        raise (ArgumentError if isinstance(steps, int) else ArgumentTypeError)(f"linspace wants 0 steps or more, not {steps}")
    by = (end - start) / (steps - 1) if steps > 1 else 0.0
    kind = dtype_of(dtype or float32)
    found = apply(TABLE["iota"], (float(start), float(by)), ((steps,), (steps,), (0,), kind.code))
    return _made(found, requires_grad)


@function
def logspace(
    start: float, end: float, steps: int, base: float = 10.0, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """The base to the power of equally distant numbers."""
    return (float(base) ** linspace(start, end, steps)).to(dtype or float32)


def _like(name: str) -> None:
    make = FUNCTIONS[name]

    value = {"zeros": 0, "ones": 1, "empty": 0}.get(name)

    def like(
        input: Tensor, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
        pin_memory: bool = False, memory_format: Any = None,
    ) -> Tensor:  # fmt: skip
        if value is not None:  # it lies where the other does
            return full_like(input, value, dtype, requires_grad)
        return make(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)

    like.__name__ = like.__qualname__ = f"{name}_like"
    like.__doc__ = f"`{name}`, of another tensor's shape and dtype."
    function(like)

    def new(
        self: Tensor, *size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
        pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        return make(*size, dtype=dtype or self.dtype, requires_grad=requires_grad)

    if name not in ("rand", "randn"):
        new.__name__ = new.__qualname__ = f"new_{name}"
        new.__doc__ = f"`{name}`, of this tensor's dtype."
        method(new)


for _name in ("zeros", "ones", "empty", "rand", "randn"):
    _like(_name)


@function
def full_like(
    input: Tensor, fill_value: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor of one value, of another's shape, where that lies."""
    value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    if isinstance(value, complex):
        return full(input.shape, value, dtype=dtype or input.dtype, requires_grad=requires_grad)
    return _made(apply(TABLE["full_like"], (input, value), (dtype_of(dtype or input.dtype).code,)), requires_grad)


@method
def new_full(
    self: Tensor, size: Any, fill_value: Any, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return full(size, fill_value, dtype=dtype or self.dtype)


@method
def new_tensor(
    self: Tensor, data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return tensor(data, dtype=dtype or self.dtype, requires_grad=requires_grad)


@function
def randint_like(
    input: Tensor, low: int, high: Any = None, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    return (
        randint(low, high, input.shape, dtype or input.dtype)
        if high is not None
        else randint(0, low, input.shape, dtype or input.dtype)
    )


@function
def randperm(
    n: int, dtype: Any = None, device: Any = None, layout: Any = None, pin_memory: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """The numbers from 0 to n - 1 in a random order."""
    return draw("integers", (n,), int64, (0, 1 << 32), generator).argsort().to(dtype or int64)


@function
def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normal random numbers, with one mean and deviation or those of tensors."""
    if size is None:
        from gt.ops.rules import broadcast

        size = broadcast(*[x.shape for x in (mean, std) if isinstance(x, Tensor)])
        dtype = dtype or next(x for x in (mean, std) if isinstance(x, Tensor)).dtype
    return randn(size, dtype=dtype, generator=generator) * std + mean


@function
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the chance that stands there, else 0."""
    found = (rand(input.shape, dtype=input.dtype, generator=generator) < (input if p is None else p)).to(input.dtype)
    return (found == found).pick(found, input) if input.requires_grad else found  # on the tape, with a gradient of 0


@function
def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Places drawn by their weights along the last axis."""
    if num_samples <= 0 or input.shape[-1:] > (1 << 24,):
        raise ArgumentError(f"multinomial draws 1 or more of at most 2**24 places, not {num_samples} of {input.shape[-1]}")
    if input.ndim not in (1, 2):
        raise ArgumentError(f"multinomial wants one or two axes of weights, not {input.shape}")
    if replacement:
        edges = input.cumsum(axis=-1)
        draws = rand((*input.shape[:-1], num_samples), dtype=input.dtype, generator=generator)
        draws = draws * edges.narrow(-1, input.shape[-1] - 1, 1)
        return FUNCTIONS["searchsorted"](edges, draws, right=True).clamp(0, input.shape[-1] - 1)
    if num_samples > input.shape[-1]:
        raise ArgumentError(f"cannot draw {num_samples} different places of {input.shape[-1]}")
    # the first to arrive, of clocks that run at the speed of their weight
    clocks = -(1.0 - rand(input.shape, dtype=input.dtype, generator=generator)).log() / input
    return clocks.topk(num_samples, -1, largest=False).indices


@function
def as_tensor(data: Any, dtype: Any = None, device: Any = None, layout: Any = None, pin_memory: bool = False) -> Tensor:
    """The data as a tensor; a tensor stays what it is."""
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtype)
    return tensor(data, dtype=dtype)


def _deviation(std: Any) -> Any:
    if not isinstance(std, Tensor) and std < 0:
        raise ArgumentError(f"a deviation is 0 or more, not {std}")
    return std


def _draw_into(name: str, numbers: Any) -> None:
    def change(self: Tensor, *args: Any, **settings: Any) -> Tensor:
        from gt.client.writes import assign

        return assign(self, numbers(self, *args, **settings))

    change.__name__ = change.__qualname__ = name
    change.__doc__ = "Random numbers, into this variable."
    method(change)


_draw_into("uniform_", lambda x, a=0.0, b=1.0: rand(x.shape, dtype=x.dtype) * (b - a) + a)
_draw_into("normal_", lambda x, mean=0.0, std=1.0: randn(x.shape, dtype=x.dtype) * _deviation(std) + mean)
_draw_into("bernoulli_", lambda x, p=0.5: (rand(x.shape) < p).to(x.dtype))
_draw_into("exponential_", lambda x, lambd=1.0: -(1.0 - rand(x.shape, dtype=x.dtype)).log() / lambd)
_T: Any = Tensor
_T.bernoulli = bernoulli
_T.multinomial = multinomial


def loaded(data: np.ndarray, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A tensor of these bytes, as they stand."""
    scope = here()
    return Tensor(scope.session.load(np.ascontiguousarray(data), Spec(shape, dtype), scope))
