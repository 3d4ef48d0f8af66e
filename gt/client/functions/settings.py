"""Names that scripts use around their tensors: sizes, tensor types by dtype, random state and process-wide settings."""

from __future__ import annotations

from typing import Any

from gt.backends.precision import PRODUCTS
from gt.client.autograd import CONSTRUCT, Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import tensor, zeros
from gt.client.functions.random import loaded_state, saved_state
from gt.client.functions.registry import FUNCTIONS, function, method
from gt.client.here import here
from gt.client.native import NATIVE
from gt.errors import ArgumentError, ArgumentTypeError
from gt.spec import DType, Size, bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8


class Settings:
    """Process-wide settings of scripts. Workers use none of them; they are stored to be returned."""

    deterministic = False


@function
def set_float32_matmul_precision(precision: str) -> None:
    """The precision of float32 in matrix products issued from now on, in all threads: "highest" multiplies in float32, with
    "high" and "medium" GPU workers round operands to TF32, and with "medium" CPU workers may round them to bfloat16."""
    PRODUCTS.set(precision)


@function
def get_float32_matmul_precision() -> str:
    return PRODUCTS.value


@function
def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Stored for `are_deterministic_algorithms_enabled`. Random numbers are reproducible in any case."""
    Settings.deterministic = bool(mode)


@function
def are_deterministic_algorithms_enabled() -> bool:
    return Settings.deterministic


@function
def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Stored and returned: the same seed gives the same numbers in any case."""
    modes = {"default": 0, "warn": 1, "error": 2, 0: 0, 1: 1, 2: 2}
    if debug_mode not in modes:
        raise ArgumentError(f"debug_mode is {debug_mode!r}: expected default, warn, error, or 0 to 2")
    Settings.deterministic = modes[debug_mode] == 2


@function
def get_deterministic_debug_mode() -> int:
    return 2 if Settings.deterministic else 0


@function
def set_warn_always(b: bool) -> None:
    """Without effect: GT warns once."""


@function
def is_warn_always_enabled() -> bool:
    return False


def _asked(name: str) -> None:
    def ask(input: Tensor) -> Any:
        found = getattr(input, name)
        return found() if callable(found) else found

    ask.__name__ = ask.__qualname__ = name
    ask.__doc__ = f"`input.{name}()`."
    FUNCTIONS[name] = ask


for _name in ("is_conj", "is_neg", "is_signed", "is_inference", "get_device"):
    _asked(_name)


class layout:
    """PyTorch's type of `gt.strided`, for annotations; here those are strings."""


class memory_format:
    """PyTorch's type of `gt.contiguous_format`, for annotations; here those are strings."""


FUNCTIONS["layout"], FUNCTIONS["memory_format"] = layout, memory_format


@function
def get_rng_state() -> Tensor:
    """The state of the session's random numbers, for `set_rng_state`."""
    session = here().session
    state, session.draws = saved_state(session.seed, session.draws)
    return state


@function
def set_rng_state(new_state: Tensor) -> None:
    """Continue the random numbers from a state of `get_rng_state`."""
    session = here().session
    session.seed, session.draws = loaded_state(new_state)


def of_data(data: tuple, dtype: DType, device: Any = None) -> Tensor:
    """A tensor of data, or, given sizes, of that shape, uninitialised in PyTorch."""
    if len(data) == 1 and isinstance(data[0], Size):
        data = tuple(data[0])
    elif len(data) == 1 and isinstance(data[0], Tensor):
        return data[0].detach()
    if all(isinstance(d, int) for d in data):
        return zeros(*data, dtype=dtype) if data else zeros(0, dtype=dtype)
    if len(data) > 1 or not hasattr(data[0], "__len__"):
        found = ", ".join(type(d).__name__ for d in data)
        raise ArgumentTypeError(f"expected sizes or one sequence of data, got {found}: for a number write gt.tensor")
    return tensor(list(data[0]) if isinstance(data[0], range) else data[0], dtype=dtype)


def _constructed(*data: Any, device: Any = None) -> Tensor:
    """`Tensor([1.0, 2.0])` and `Tensor(2, 3)`, of the default dtype."""
    return of_data(data, DEFAULT.dtype)


if NATIVE is not None:
    NATIVE.construct(_constructed)
else:
    CONSTRUCT.append(_constructed)


class _OfDtype(type):
    """A tensor type by its dtype: calling it makes tensors, isinstance() tests for its dtype."""

    dtype: DType

    def __call__(cls, *data: Any, device: Any = None) -> Tensor:
        return of_data(data, cls.dtype)

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, Tensor) and thing.dtype is cls.dtype


TYPES: dict[str, DType] = {}
for _name, _dtype in (("FloatTensor", float32), ("DoubleTensor", float64), ("HalfTensor", float16),
                      ("BFloat16Tensor", bfloat16), ("LongTensor", int64), ("IntTensor", int32), ("ShortTensor", int16),
                      ("CharTensor", int8), ("ByteTensor", uint8), ("BoolTensor", bool_)):  # fmt: skip
    _about = f"A {_dtype.name} tensor of data, or, given sizes, of that shape."
    TYPES[_name] = _dtype
    FUNCTIONS[_name] = _OfDtype(_name, (), {"dtype": _dtype, "__doc__": _about, "__module__": __name__})


def _in_type(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """This tensor in another dtype, given as a dtype, as `gt.LongTensor` or by name; without one, the name of its type.

    >>> gt.ones(2).type(), gt.ones(2).type(gt.LongTensor)
    ('gt.FloatTensor', tensor([1, 1]))
    """
    if dtype is None:
        own = self.handle.spec.dtype
        return "gt." + next((name for name, known in TYPES.items() if known is own), f"{own.name.capitalize()}Tensor")
    named = dtype.rpartition(".")[2] if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    return self.to(TYPES.get(named, dtype))


_in_type.__name__ = _in_type.__qualname__ = "type"  # here the builtin has that name
method(_in_type)
