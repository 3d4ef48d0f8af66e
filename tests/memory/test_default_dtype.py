"""`set_default_dtype`: floats without a dtype have the default one, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gt
from gt.testing import cluster

MADE: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda m: m.zeros(2),
    "ones": lambda m: m.ones(2),
    "empty": lambda m: m.empty(2),
    "full": lambda m: m.full((2,), 1.5),
    "full of whole numbers": lambda m: m.full((2,), 3),
    "full of complex numbers": lambda m: m.full((2,), 1j),
    "rand": lambda m: m.rand(2),
    "randn": lambda m: m.randn(2),
    "randint": lambda m: m.randint(3, (2,)),
    "eye": lambda m: m.eye(2),
    "arange of floats": lambda m: m.arange(0.0, 2.0),
    "arange": lambda m: m.arange(3),
    "linspace": lambda m: m.linspace(0, 1, 3),
    "logspace": lambda m: m.logspace(0, 1, 3),
    "tensor of a float": lambda m: m.tensor(1.5),
    "tensor of floats": lambda m: m.tensor([1.5, 2]),
    "tensor of complex numbers": lambda m: m.tensor([1j]),
    "tensor of ints": lambda m: m.tensor([1, 2]),
    "scalar_tensor": lambda m: m.scalar_tensor(2.0),
    "as_tensor": lambda m: m.as_tensor([0.5]),
    "int by float": lambda m: m.arange(3) * 1.5,
    "float by int": lambda m: 1.5 - m.arange(3),
    "int by int": lambda m: m.arange(3) / m.arange(1, 4),
    "int by number": lambda m: m.arange(3) / 2,
    "number by int": lambda m: 2 / m.arange(1, 3),
    "sqrt of ints": lambda m: m.arange(3).sqrt(),
    "exp of bools": lambda m: (m.arange(3) > 1).exp(),
    "int by complex": lambda m: m.arange(3) * 1j,
    "float32 stays": lambda m: m.zeros(2, dtype=m.float32) * 1.5,
    "where of numbers": lambda m: m.where(m.arange(3) > 1, 1.0, 0.0),
    "pow": lambda m: m.arange(3) ** 0.5,
    "mean in place": lambda m: m.arange(4).float(),
    "softmax": lambda m: m.zeros(2, 2).softmax(1),
    "hann_window": lambda m: m.hann_window(4),
    "fftfreq": lambda m: m.fft.fftfreq(4),
    "weight of a layer": lambda m: m.nn.Linear(2, 2).weight,
    "bias of a convolution": lambda m: m.nn.Conv2d(2, 2, 1).bias,
    "running mean": lambda m: m.nn.BatchNorm1d(3).running_mean,
    "embedding": lambda m: m.nn.Embedding(3, 2).weight,
    "lstm": lambda m: m.nn.LSTM(2, 2).weight_ih_l0,
    "normal distribution": lambda m: m.distributions.Normal(0.0, 1.0).sample((2,)),
    "finfo": lambda m: m.zeros(1).fill_(m.finfo().bits),
    "dtype=float is float64": lambda m: m.zeros(2, dtype=float),
}


@pytest.fixture(params=["float64", "float16", "bfloat16", "float32"])
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    with cluster():
        for m in (gt, torch):
            m.set_default_dtype(getattr(m, request.param))
        try:
            yield request.param
        finally:
            for m in (gt, torch):
                m.set_default_dtype(m.float32)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_result_without_a_named_dtype_has_the_default(name: str) -> None:
    assert gt.get_default_dtype() is getattr(gt, name)
    wrong = []
    for what, make in MADE.items():
        try:
            want = str(make(torch).dtype).removeprefix("torch.")
        except (RuntimeError, TypeError):  # PyTorch itself has it not for this default
            continue
        if "complex" in want and name == "float16":  # it would be complex32, which GT has not
            with pytest.raises(TypeError, match="complex32"):
                make(gt)
            continue
        found = make(gt).dtype.name
        if found != want:
            wrong.append(f"{what}: {found}, PyTorch {want}")
    assert not wrong


def test_float32_is_back_after_a_change_of_the_default(name: str) -> None:
    x = gt.arange(3)
    assert (x / 2).dtype is getattr(gt, name)
    gt.set_default_dtype(gt.float32)
    assert (x / 2).dtype is gt.float32 and gt.zeros(1).dtype is gt.float32


def test_only_floats_are_a_default() -> None:
    for m in (gt, torch):
        with pytest.raises(TypeError):
            m.set_default_dtype(m.int64)


def test_a_tensor_type_names_a_default(name: str) -> None:
    gt.set_default_tensor_type("torch.DoubleTensor")
    assert gt.zeros(1).dtype is gt.float64
    gt.set_default_tensor_type(gt.FloatTensor)
    assert gt.zeros(1).dtype is gt.float32
