"""Lines on which GT once differed from PyTorch without an error, each against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt


def _array(t: Any) -> np.ndarray:
    return t.detach().numpy()


def _number_on_the_left(lib: Any) -> np.ndarray:
    w = lib.ones(3, requires_grad=True)
    (np.float64(2) * w).sum().backward()
    return _array(w.grad)


def _written_through(part: str) -> Callable[[Any], np.ndarray]:
    def run(lib: Any) -> np.ndarray:
        z = lib.tensor([1 + 2j, 3 - 1j])
        view = getattr(z, part)
        view.mul_(2)
        z.add_(1)
        return np.concatenate([_array(z), _array(view)])

    return run


LINES: dict[str, Callable[[Any], Any]] = {
    "a NumPy number on the left keeps the tape": _number_on_the_left,
    "x == None": lambda lib: lib.ones(2) == None,  # noqa: E711
    "x != None": lambda lib: lib.ones(2) != None,  # noqa: E711
    "a write through real": _written_through("real"),
    "a write through imag": _written_through("imag"),
    "circular padding crops first": lambda lib: _array(
        lib.nn.functional.pad(lib.arange(12.0).reshape(1, 2, 6), (-1, 2), mode="circular")
    ),
}


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
@pytest.mark.parametrize("name", LINES)
def test_a_line_does_as_in_pytorch(name: str, engine: str) -> None:
    with gt.testing.cluster(1, engine):
        found, want = LINES[name](gt), LINES[name](torch)
    assert type(found) is type(want)
    np.testing.assert_allclose(found, want)


def test_a_pair_of_values_and_indices_is_no_operand() -> None:
    with gt.testing.cluster(), pytest.raises(TypeError, match="cannot compute with"):
        gt.ones(2, 2) - gt.ones(2, 2).max(1, keepdim=True)


def test_dropout2d_of_two_axes_drops_elements_and_warns() -> None:
    with gt.testing.cluster(), pytest.warns(UserWarning, match="dropout2d"):
        dropped = gt.nn.functional.dropout2d(gt.ones(50, 40), 0.5)
        assert set(np.unique(dropped.numpy())) == {0.0, 2.0} and 0.4 < (dropped.numpy() == 0).mean() < 0.6
