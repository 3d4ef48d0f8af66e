"""Random tensors. The numbers are determined by a seed, the session's or a generator's, and the number of the draw."""

from __future__ import annotations

import math
import secrets
from itertools import count
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.checks import require_of
from gt.client.functions.create import like_form, made, shape_of, tensor
from gt.client.functions.registry import FUNCTIONS, function, method
from gt.client.here import here
from gt.client.writes import assign
from gt.errors import ArgumentError, UnsupportedDTypeError
from gt.ops.rules import broadcast
from gt.ops.table import TABLE
from gt.spec import DType, dtype_of, int64


@function
def manual_seed(seed: int) -> None:
    """Seed the session's random numbers: the same seed gives the same numbers on any number of workers."""
    session = here().session
    session.seed, session.draws = int(seed) & (2**62 - 1), count(1)


def saved_state(seed: int, draws: count) -> tuple[Tensor, count]:
    """A seed and the number of the next draw as bytes, and the draws from there."""
    at = next(draws)
    return tensor(np.array([seed, at], np.int64).view(np.uint8)), count(at)


def loaded_state(state: Tensor) -> tuple[int, count]:
    found = state.numpy()
    if found.dtype != np.uint8 or found.shape != (16,):
        raise ArgumentError(f"expected a random state of get_rng_state, got {found.dtype} of shape {found.shape}")
    seed, at = (int(x) for x in found.view(np.int64))
    return seed, count(at)


class Generator:
    """Random numbers with a seed of their own."""

    def __init__(self, device: Any = None, layout: Any = None, pin_memory: bool = False) -> None:
        self.manual_seed(0x6D74)

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed: the same seed gives the same numbers."""
        self.seed_, self.draws = int(seed) & (2**62 - 1), count(1)
        return self

    def seed(self) -> int:
        """Set a random seed."""
        self.manual_seed(secrets.randbits(62))
        return self.seed_

    def initial_seed(self) -> int:
        return self.seed_

    def get_state(self) -> Tensor:
        """The seed, and how many draws there were, as bytes."""
        state, self.draws = saved_state(self.seed_, self.draws)
        return state

    def set_state(self, new_state: Tensor) -> Generator:
        self.seed_, self.draws = loaded_state(new_state)
        return self

    def clone_state(self) -> Generator:
        return Generator().set_state(self.get_state())


FUNCTIONS["Generator"] = Generator


@function
def initial_seed() -> int:
    """The seed of the session's random numbers."""
    return here().session.seed


@function
def seed() -> int:
    """Set a random seed for the session's random numbers."""
    manual_seed(secrets.randbits(62))
    return initial_seed()


def draw(name: str, shape: tuple[int, ...], dtype: Any, numbers: tuple = (), generator: Generator | None = None) -> Tensor:
    """A random op: a seed, the session's or the generator's, and the number of the draw."""
    session = here().session
    mine = (session.seed, next(session.draws)) if generator is None else (generator.seed_, next(generator.draws))
    operands = (*mine, *numbers)
    return apply(TABLE[name], operands, (shape, shape, (0,) * len(shape), dtype_of(dtype).code))


def _complex_draw(name: str, shape: tuple[int, ...], dtype: Any, generator: Generator | None) -> Tensor:
    parts = [draw(name, shape, dtype_of(dtype).to_real(), generator=generator) for _ in range(2)]
    return apply(TABLE["complex"], tuple(parts))


def _float_dtype(dtype: Any) -> DType:
    result_dtype = dtype_of(dtype or DEFAULT.dtype)
    if result_dtype.rank != 2:
        raise UnsupportedDTypeError(f"random numbers of {result_dtype.name} come from randint")
    return result_dtype


@function
def rand(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Uniform random numbers in [0, 1)."""
    want = shape_of(dims, shape if size is None else size)
    if dtype is not None and dtype_of(dtype).is_complex:
        return made(_complex_draw("uniform", want, dtype, generator), requires_grad)
    return made(draw("uniform", want, _float_dtype(dtype), generator=generator), requires_grad)


@function
def randn(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random numbers of the standard normal distribution."""
    want = shape_of(dims, shape if size is None else size)
    if dtype is not None and dtype_of(dtype).is_complex:
        return made(_complex_draw("normal", want, dtype, generator) * math.sqrt(0.5), requires_grad)
    return made(draw("normal", want, _float_dtype(dtype), generator=generator), requires_grad)


@function
def randint(
    low: int, high: Any = None, size: Any = None, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random integers from low (0) to high, high excluded."""
    if size is None and isinstance(high, (tuple, list)):
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if high <= low:
        raise ArgumentError(f"randint from {low} to {high}: expected a low below the high")
    return draw("integers", shape_of((size,)), dtype or int64, (int(low), int(high)), generator)


for _name in ("rand", "randn"):
    like_form(_name)


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
    """A random permutation of the integers from 0 to n - 1."""
    return draw("integers", (n,), int64, (0, 1 << 32), generator).argsort().to(dtype or int64)


@function
def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normal random numbers; mean and deviation are numbers or tensors."""
    if size is None:
        size = broadcast(*[x.shape for x in (mean, std) if isinstance(x, Tensor)])
        dtype = dtype or next(x for x in (mean, std) if isinstance(x, Tensor)).dtype
    if isinstance(std, Tensor):
        require_of(std, lambda s: s >= 0, "normal: expected deviations of 0 or more, found others")
    elif std < 0:
        raise ArgumentError(f"normal: expected a deviation of 0 or more, got {std}")
    drawn = randn(size, dtype=dtype, generator=generator) * std + mean
    drawn = drawn if dtype is None else drawn.to(dtype)
    found = drawn.detach()
    return (found == found).pick(found, drawn) if drawn.requires_grad else found  # as PyTorch: a gradient of 0


@function
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability given by each element, else 0."""
    if p is None:
        require_of(input, lambda c: (c >= 0) & (c <= 1), "bernoulli: expected probabilities from 0 to 1, found others")
    found = (rand(input.shape, dtype=input.dtype, generator=generator) < (input if p is None else p)).to(input.dtype)
    return (found == found).pick(found, input) if input.requires_grad else found  # on the tape, with a gradient of 0


@function
def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Indices drawn by their weights along the last axis."""
    if num_samples <= 0 or input.shape[-1:] > (1 << 24,):
        raise ArgumentError(
            f"multinomial: expected 1 or more draws of at most 2**24 weights, got {num_samples} of {input.shape[-1]}"
        )
    if input.ndim not in (1, 2):
        raise ArgumentError(f"multinomial: expected one or two axes of weights, got {input.shape}")
    require_of(
        input,
        lambda w: ((w >= 0) & (w < math.inf)).all() & (w.sum(-1) > 0),
        "multinomial: expected weights that are finite, not negative and not all 0, found others",
    )
    if replacement:
        edges = input.cumsum(axis=-1)
        draws = rand((*input.shape[:-1], num_samples), dtype=input.dtype, generator=generator)
        draws = draws * edges.narrow(-1, input.shape[-1] - 1, 1)
        return FUNCTIONS["searchsorted"](edges, draws, right=True).clamp(0, input.shape[-1] - 1)
    if num_samples > input.shape[-1]:
        raise ArgumentError(f"multinomial: cannot draw {num_samples} of {input.shape[-1]} without replacement")
    # the first to arrive, of clocks that run at the speed of their weight
    clocks = -(1.0 - rand(input.shape, dtype=input.dtype, generator=generator)).log() / input
    return clocks.topk(num_samples, -1, largest=False).indices


def _deviation(std: Any) -> Any:
    if not isinstance(std, Tensor) and std < 0:
        raise ArgumentError(f"expected a deviation of 0 or more, got {std}")
    return std


def _draw_into(name: str, numbers: Any) -> None:
    def change(self: Tensor, *args: Any, generator: Generator | None = None, **settings: Any) -> Tensor:
        return assign(self, numbers(self, generator, *args, **settings))

    change.__name__ = change.__qualname__ = name
    change.__doc__ = "Random numbers in place."
    method(change)


def _uniform(x: Tensor, generator: Generator | None, dtype: Any = None) -> Tensor:
    return rand(x.shape, dtype=dtype or x.dtype, generator=generator)


def _normal(x: Tensor, generator: Generator | None) -> Tensor:
    return randn(x.shape, dtype=x.dtype, generator=generator)


def _whole(x: Tensor, g: Generator | None, low: int = 0, high: int | None = None) -> Tensor:
    """Integers below `high`, as `random_` draws them; also `random_(high)`."""
    low, high = (0, low) if high is None and low else (low, high or 1 << 24)
    return randint(low, high, x.shape, generator=g).to(x.dtype)


_draw_into("uniform_", lambda x, g, a=0.0, b=1.0: _uniform(x, g) * (b - a) + a)
_draw_into("normal_", lambda x, g, mean=0.0, std=1.0: _normal(x, g) * _deviation(std) + mean)
_draw_into("bernoulli_", lambda x, g, p=0.5: (_uniform(x, g, "float32") < p).to(x.dtype))
_draw_into("exponential_", lambda x, g, lambd=1.0: -(1.0 - _uniform(x, g)).log() / lambd)
_draw_into("random_", _whole)
_draw_into("log_normal_", lambda x, g, mean=1.0, std=2.0: (_normal(x, g) * std + mean).exp())
_draw_into("geometric_", lambda x, g, p: ((1.0 - _uniform(x, g, "float32")).log() / math.log(1 - p)).floor().to(x.dtype) + 1)
_draw_into("cauchy_", lambda x, g, median=0.0, sigma=1.0: ((_uniform(x, g) - 0.5) * math.pi).tan() * sigma + median)
_T: Any = Tensor
_T.bernoulli = bernoulli
_T.multinomial = multinomial
