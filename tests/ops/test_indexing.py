"""Any index, any assignment by index, and their gradients are PyTorch's; where PyTorch has no backward slices, NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gt
from gt.client.functions import index as index_module


@pytest.fixture(scope="module", params=["numpy", "pytorch"], autouse=True)
def _cluster(request):
    with gt.testing.cluster(1, request.param):
        yield


@st.composite
def arrays_of_places(draw: Any, size: int, shape: tuple[int, ...]) -> np.ndarray:
    places = st.integers(-size, size - 1)
    return np.array(draw(st.lists(places, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))).reshape(shape)


@st.composite
def indices(draw: Any, arrays: bool = True, backward: bool = False) -> tuple[tuple[int, ...], tuple]:
    """A shape and an index that fits it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    together = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 1), (2, 2)]))
    index: list[Any] = []
    used = draw(st.integers(0, len(shape)))
    axis = 0
    while axis < used:
        kinds = ["int", "slice"] + (["places", "mask"] if arrays else [])
        kind = draw(st.sampled_from(kinds))
        size = shape[axis]
        if kind == "int":
            index.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            ends = st.none() | st.integers(-size - 1, size + 1)
            step = draw(st.sampled_from([None, 1, 2, 3] + ([-1, -2] if backward else [])))
            index.append(slice(draw(ends), draw(ends), step))
        elif kind == "places":
            sub = draw(st.sampled_from([together, (1,) * len(together)]))
            index.append(draw(arrays_of_places(size, sub)) if sub else draw(st.integers(-size, size - 1)))
        else:
            # a mask must name as many elements as the other index arrays, or one
            n = together[-1] if len(together) == 1 else 1
            n = min(n, size)
            mask = np.zeros(size, bool)
            mask[:n] = True
            index.append(mask)
        axis += 1
        if draw(st.integers(0, 4)) == 0:
            index.append(None)
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))) if axis < len(shape) or True else 0, Ellipsis)
    return shape, tuple(index)


def for_torch(index: tuple) -> tuple:
    return tuple(torch.from_numpy(p) if isinstance(p, np.ndarray) else p for p in index)


def valid(shape: tuple[int, ...], index: tuple) -> bool:
    """Whether PyTorch takes it: arrays may not broadcast, an Ellipsis may move a mask to another axis."""
    try:
        torch.zeros(shape)[for_torch(index)]
        np.zeros(shape)[index]  # PyTorch does not look at places that are out of range where nothing is picked
    except (IndexError, ValueError, RuntimeError):
        return False
    return True


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1.0, 1.0 + int(np.prod(shape))).reshape(shape) ** 1.5


@settings(max_examples=250, deadline=None)
@given(indices())
def test_picking_and_its_gradient_are_pytorchs(case):
    shape, index = case
    assume(valid(shape, index))
    ours, theirs = gt.tensor(numbers(shape), requires_grad=True), torch.tensor(numbers(shape), requires_grad=True)
    found = ours[tuple(gt.tensor(p) if isinstance(p, np.ndarray) else p for p in index)]
    with torch.enable_grad():
        want = theirs[for_torch(index)]
        (want * want).sum().backward()
    assert found.shape == tuple(want.shape)
    np.testing.assert_array_equal(found.numpy(), want.detach().numpy())
    (found * found).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy())


@settings(max_examples=150, deadline=None)
@given(indices(arrays=False, backward=True))
def test_slices_of_any_step_are_numpys(case):
    shape, index = case
    array = numbers(shape)
    try:
        want = array[index]
    except IndexError:
        assume(False)
    x = gt.tensor(array, requires_grad=True)
    found = x[index]
    np.testing.assert_array_equal(found.numpy(), want)
    (found * found).sum().backward()
    gradient = np.zeros(shape)
    gradient[index] = 2 * want
    np.testing.assert_allclose(x.grad.numpy(), gradient)
    y = gt.tensor(array)
    y[index] = 7
    array[index] = 7
    np.testing.assert_array_equal(y.numpy(), array)


@settings(max_examples=250, deadline=None)
@given(indices(), st.sampled_from(["number", "whole", "row", "0-d"]))
def test_writing_and_its_gradients_are_pytorchs(case, form):
    shape, index = case
    assume(valid(shape, index))
    with torch.no_grad():
        spot = torch.arange(int(np.prod(shape))).reshape(shape)[for_torch(index)]
    assume(form == "number" or len(spot.unique()) == spot.numel())  # which of two values ends up there is nobody's promise
    value = {
        "number": 3.5,
        "whole": numbers(tuple(spot.shape)) if spot.numel() else np.zeros(tuple(spot.shape)),
        "row": np.ones(tuple(spot.shape)[-1:]) * 2.5,
        "0-d": np.array(4.5),
    }[form]
    tensors = isinstance(value, np.ndarray)
    ours, theirs = gt.tensor(numbers(shape), requires_grad=True), torch.tensor(numbers(shape), requires_grad=True)
    v = gt.tensor(value, requires_grad=True) if tensors else value
    w = torch.tensor(value, requires_grad=True) if tensors else value
    changed = ours * 2
    changed[tuple(gt.tensor(p) if isinstance(p, np.ndarray) else p for p in index)] = v
    with torch.enable_grad():
        other = theirs * 2
        other[for_torch(index)] = w
        (other * other).sum().backward()
    np.testing.assert_array_equal(changed.numpy(), other.detach().numpy())
    (changed * changed).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy())
    if tensors:
        zeros = np.zeros(w.shape)
        np.testing.assert_allclose(zeros if v.grad is None else v.grad.numpy(), zeros if w.grad is None else w.grad.numpy())


REFUSED = [
    "x[5]", "x[0, 0, 0]", "x[0.5]", "x['a']", "x[[9]]", "x[t.tensor([0.5])]", "x[t.tensor([True, False])]",
]  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_an_index_that_pytorch_refuses_is_refused(line):
    with pytest.raises((IndexError, TypeError)):
        eval(line, {"t": torch, "x": torch.zeros(3, 4)})
    with pytest.raises((IndexError, TypeError, gt.errors.RemoteError)):
        eval(line, {"t": gt, "x": gt.zeros(3, 4)}).numpy()


def test_an_index_is_parsed_once_and_not_taken_for_an_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = gt.tensor(np.arange(24.0).reshape(4, 6)), torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    same = [np.s_[:, 1], np.s_[1:-1, ::2], np.s_[..., None], np.s_[None, 2], np.s_[1], np.s_[:, 1:1]]
    other = [np.s_[:, np.int64(1)], np.s_[True], np.s_[:, True], np.s_[1:True], np.s_[np.int64(1) : 3]]
    for index in same:
        np.testing.assert_array_equal(x[index].numpy(), y[index].numpy())
    parsed, parse = [], index_module.Picture.__init__
    monkeypatch.setattr(index_module.Picture, "__init__", lambda *args: (parsed.append(args[2]), parse(*args))[1])
    for index in (*same, *other, *same):
        np.testing.assert_array_equal(x[index].numpy(), y[index].numpy())
    assert parsed == other
    with pytest.raises(IndexError):
        x[:, 6]
    with pytest.raises(TypeError):
        x[...:2]


def test_an_index_with_arrays_is_parsed_once_and_takes_the_arrays_given(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = gt.tensor(np.arange(24.0).reshape(4, 6)), torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    forms = [lambda p: p, lambda p: np.s_[:, p], lambda p: np.s_[p, p], lambda p: np.s_[1, p], lambda p: np.s_[p[:, None], 1:3]]
    parsed, parse = [], index_module.Picture.__init__
    monkeypatch.setattr(index_module.Picture, "__init__", lambda *args: (parsed.append(args[2]), parse(*args))[1])
    for i, places in enumerate(([0, 1], [3, 2], [1, -1])):
        for form in forms:
            picked, want = x[form(gt.tensor(places))], y[form(torch.tensor(places))]
            np.testing.assert_array_equal(picked.numpy(), want.numpy())
            ours, theirs = x.clone(), y.clone()
            ours[form(gt.tensor(places))], theirs[form(torch.tensor(places))] = -1.0, -1.0
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        if not i:
            parsed.clear()
    assert not parsed
