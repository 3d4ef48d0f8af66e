"""Tensors made by their constructor, parameters and buffers, as PyTorch's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import gt


@pytest.fixture(autouse=True)
def pool():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


DATA: dict[str, Any] = {
    "list": lambda m: m.Tensor([1, 2, 3]),
    "nested": lambda m: m.Tensor([[1.5, 2.5]]),
    "tuple": lambda m: m.Tensor((2, 3)),
    "range": lambda m: m.Tensor(range(3)),
    "array": lambda m: m.Tensor(np.arange(3)),
    "booleans": lambda m: m.Tensor([True, False]),
    "nothing": lambda m: m.Tensor(),
    "tensor": lambda m: m.Tensor(m.ones(2)),
    "device": lambda m: m.Tensor([1.0], device="cpu"),
    "of a dtype": lambda m: m.LongTensor([1, 2]),
}


@pytest.mark.parametrize("name", DATA)
def test_the_constructor_makes_tensors_of_data(name: str) -> None:
    own, theirs = DATA[name](gt), DATA[name](torch)
    assert type(own) is gt.Tensor and own.dtype.name == str(theirs.dtype).split(".")[1]
    assert own.tolist() == theirs.tolist()


def test_the_constructor_makes_tensors_of_sizes() -> None:
    for m in (gt, torch):
        assert tuple(m.Tensor(2, 3).shape) == (2, 3) and tuple(m.Tensor(4).shape) == (4,)
        assert tuple(m.Tensor(m.Size((2, 3))).shape) == (2, 3) and tuple(m.FloatTensor(2, 1).shape) == (2, 1)
        assert isinstance(m.Tensor(1), m.FloatTensor) and not isinstance(m.Tensor(1), m.LongTensor)


def test_the_constructor_refuses_numbers_and_dtypes() -> None:
    for m in (gt, torch):
        with pytest.raises(TypeError):
            m.Tensor(1.5)
        with pytest.raises(TypeError):
            m.Tensor([1.0], dtype=m.float64)
        with pytest.raises(RuntimeError):
            m.Tensor(-1)


def test_parameters_are_pytorchs() -> None:
    for m in (gt, torch):
        assert tuple(m.nn.Parameter().shape) == (0,) and m.nn.Parameter().requires_grad
        with pytest.raises(RuntimeError, match="floating.point and complex"):
            m.nn.Parameter(m.arange(3))
        assert not m.nn.Parameter(m.arange(3), requires_grad=False).requires_grad
        weight = m.nn.Parameter(m.ones(2))
        weight.decays = False  # an attribute of one's own
        assert not weight.decays
        assert repr(weight) == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
        assert isinstance(copy.deepcopy(weight), m.nn.Parameter)


def test_buffers_are_kept_in_the_state_unless_they_are_not_persistent() -> None:
    for m in (gt, torch):
        made = m.nn.Module()
        made.mean = m.nn.Buffer(m.zeros(2))
        made.mask = m.nn.Buffer(m.ones(2), persistent=False)
        made.weight = m.nn.Parameter(m.ones(2))
        assert [name for name, _ in made.named_buffers()] == ["mean", "mask"]
        assert [name for name, _ in made.named_parameters()] == ["weight"]
        assert sorted(made.state_dict()) == ["mean", "weight"]
        made.mean.add_(1.0)
        other = copy.deepcopy(made)
        assert other.mean.tolist() == [1.0, 1.0] and sorted(other.state_dict()) == ["mean", "weight"]
        assert len(list(other.parameters())) == 1
        with pytest.raises(RuntimeError):
            made.load_state_dict({"weight": m.ones(3), "mean": m.ones(2)})
        with pytest.raises(RuntimeError):
            made.load_state_dict({})


def test_files_of_pytorchs_modules_are_there_to_import_from() -> None:
    from gt.nn.modules.batchnorm import _BatchNorm
    from gt.nn.modules.loss import _Loss
    from gt.nn.modules.module import Module

    from gt.nn.modules.utils import _pair
    from gt.nn.parameter import Parameter

    assert isinstance(gt.nn.BatchNorm2d(1), _BatchNorm) and isinstance(gt.nn.MSELoss(), _Loss)
    assert Module is gt.nn.Module and Parameter is gt.nn.Parameter and _pair(3) == (3, 3) == _pair([3, 3])
