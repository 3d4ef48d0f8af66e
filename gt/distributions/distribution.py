"""The base of distributions: shapes of batches and events, checks of parameters and values, expansion.

Parameters that are Python numbers, or small tensors of numbers from this client, are checked when a distribution is made. Of
other tensors the check is read along with the next value that the script reads, which raises. `validate_args=True` waits and
raises on the line itself, `validate_args=False` checks nothing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.checks import require, require_of
from gt.client.functions.create import full, tensor
from gt.client.functions.movement import broadcast_tensors
from gt.client.grad_mode import no_grad
from gt.distributions import constraints
from gt.spec import Size

Shape = Sequence[int]


def broadcast_all(*values: Any) -> list[Tensor]:
    """Tensors and numbers as tensors of one shape; numbers take the dtype of the first floating-point tensor."""
    dtype = next((v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()), DEFAULT.dtype)
    made = [v if isinstance(v, Tensor) else full((), float(v), dtype=dtype) if _number(v) else tensor(v) for v in values]
    return list(broadcast_tensors(*made))


def _number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


class Distribution:
    """Subclass with `arg_constraints`, `support`, `sample` or `rsample`, and `log_prob`."""

    has_rsample = has_enumerate_support = False
    arg_constraints: dict[str, constraints.Constraint] = {}
    _validate_args, _waits = True, False  # whether values are checked, and whether that waits for the workers
    _numbers: frozenset[str] = frozenset()  # the parameters that were Python numbers, which are checked already
    _given: tuple[str, ...] | None = None  # the parameters it was made of, where that is a choice

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "__init__" in cls.__dict__:
            cls.__init__ = _checking(cls.__init__)  # type: ignore[method-assign]

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        if value not in (True, False):
            raise ValueError(f"validation: expected True or False, got {value!r}")
        Distribution._validate_args = Distribution._waits = value

    def __init__(self, batch_shape: Shape = (), event_shape: Shape = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = self._waits = validate_args
        for name, constraint in self.arg_constraints.items() if self._validate_args else ():
            if self._given is not None and name not in self._given:
                continue
            value = self.__dict__.get(name, self.__dict__.get(f"_{name}"))
            if isinstance(value, Tensor) and name not in self._numbers and type(constraint) is not constraints._Dependent:
                self._require(constraint, value, f"{name} of shape {tuple(value.shape)} is outside of {constraint!r}")

    def _require(self, constraint: constraints.Constraint, value: Tensor, text: str) -> None:
        """Raise `text` if a value is outside its constraint: at once, or, if only workers know the value, at the next read."""
        text = f"{type(self).__name__}: {text}"
        if self._waits:
            with no_grad():
                if not bool(constraint.check(value).all()):
                    raise ValueError(text)
            return
        if constraint.of_arrays:
            require_of(value, constraint.check, text)
            return
        with no_grad():
            require(constraint.check(value), text)

    @property
    def batch_shape(self) -> Size:
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        return self._event_shape

    @property
    def support(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define the support of its values")

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def mode(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no mode")

    @property
    def variance(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Values off the tape."""
        with no_grad():
            return self.rsample(sample_shape).detach()

    def sample_n(self, n: int) -> Tensor:
        return self.sample((n,))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Values through which gradients flow to the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no samples with gradients: use sample() and log_prob()")

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def entropy(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no entropy in closed form")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no finite support")

    def perplexity(self) -> Tensor:
        return self.entropy().exp()

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        """The same distribution for each element of a larger batch."""
        given = {}
        for name in self._given or tuple(self.arg_constraints):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                tail = value.shape[value.ndim - self.arg_constraints[name].event_dim :]
                value = value.expand(tuple(batch_shape) + tuple(tail))
            given[name] = value
        return type(self)(**given, validate_args=False)

    def _extended_shape(self, sample_shape: Shape = ()) -> tuple[int, ...]:
        return (*sample_shape, *self._batch_shape, *self._event_shape)

    def _validate_sample(self, value: Any) -> Any:
        """The argument of `log_prob` and similar methods: a tensor whose shape fits."""
        value = value if isinstance(value, Tensor) else tensor(value)
        event = len(self._event_shape)
        if value.ndim < event or tuple(value.shape[value.ndim - event :]) != tuple(self._event_shape):
            raise ValueError(f"{type(self).__name__} has events of shape {tuple(self._event_shape)}, not {tuple(value.shape)}")
        for have, want in zip(reversed(value.shape), reversed(self._extended_shape())):
            if have != 1 and want != 1 and have != want:
                raise ValueError(f"a value of shape {tuple(value.shape)} does not broadcast with {self._extended_shape()}")
        if self._validate_args:
            support = self.support
            self._require(support, value, f"a value of shape {tuple(value.shape)} is outside of {support!r}, its support")
        return value

    def __repr__(self) -> str:
        names = [n for n in (self._given or self.arg_constraints) if n in self.__dict__]
        parts = [f"{n}: {v if v.numel() == 1 else tuple(v.shape)}" if isinstance(v := self.__dict__[n], Tensor) else f"{n}: {v}"
                 for n in names]  # fmt: skip
        return f"{type(self).__name__}({', '.join(parts)})"


def _checking(init: Any) -> Any:
    """An `__init__` that refuses Python numbers outside its class's `arg_constraints`."""
    names = list(inspect.signature(init).parameters)[1:]

    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("validate_args") is not False and "_numbers" not in self.__dict__:
            numbers = {name for name, value in (*zip(names, args), *kwargs.items()) if _number(value)}
            self._numbers = frozenset(numbers)
            for name, value in (*zip(names, args), *kwargs.items()):
                constraint = type(self).arg_constraints.get(name)
                plain = (
                    constraint is not None and constraint.event_dim == 0 and not isinstance(constraint, constraints._Dependent)
                )
                if _number(value) and plain and not constraint.check(value):
                    raise ValueError(f"{type(self).__name__}: {name} is {value}, outside of {constraint!r}")
        init(self, *args, **kwargs)

    checked.__name__, checked.__doc__, checked.__wrapped__ = "__init__", init.__doc__, init  # type: ignore[attr-defined]
    return checked


class ExponentialFamily(Distribution):
    """Distributions whose log density is linear in natural parameters."""
