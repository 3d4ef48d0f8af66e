"""Tensors in other dtypes, as text and as copies, as in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt


@pytest.fixture(autouse=True)
def pool():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


def test_a_number_in_a_string_is_the_number_and_other_tensors_are_shown() -> None:
    for m in (gt, torch):
        loss = m.tensor(0.5, requires_grad=True) * 3
        assert f"{loss}|{loss:.2f}|{m.tensor(3)}|{m.tensor(7):3d}|{m.tensor(True)}" == "1.5|1.50|3|  7|True"
        assert f"{m.tensor([1.5])} {m.tensor(0.5)!r}" == "tensor([1.5000]) tensor(0.5000)"
        assert f"{m.nn.Parameter(m.tensor(1.5))}".startswith("Parameter containing")
        for several in (m.ones(1), m.ones(2, 2)):
            with pytest.raises(TypeError):
                f"{several:.2f}"


def test_a_copy_is_asked_for_by_to() -> None:
    for m in (gt, torch):
        x = m.zeros(3)
        x.to(m.float32, copy=True)[0] = 1
        x.to("cpu", m.float32, False, True)[0] = 1
        assert x.tolist() == [0, 0, 0]
        x.to(m.float32)[1] = 2
        x.to("cpu", m.float32, True)[2] = 3
        assert x.tolist() == [0, 2, 3]


def test_types_are_named_and_taken_by_name() -> None:
    for m, package in ((gt, "gt"), (torch, "torch")):
        x = m.tensor([1.5, -2.5])
        assert x.type() == f"{package}.FloatTensor" and x.long().type() == f"{package}.LongTensor"
        assert x.type(m.LongTensor).tolist() == x.type("torch.LongTensor").tolist() == x.type(m.int64).tolist() == [1, -2]
        assert x.type(m.tensor(1.0).double().type()).dtype == m.float64
        assert x.layout == m.strided


def test_a_generator_gives_the_same_beginning_twice() -> None:
    for m in (gt, torch):
        for begin in (m.nn.init.normal_, m.nn.init.kaiming_uniform_, m.nn.init.orthogonal_, m.nn.init.trunc_normal_):
            one, other = (begin(m.empty(4, 4), generator=m.Generator().manual_seed(5)) for _ in range(2))
            assert one.tolist() == other.tolist()
    assert gt.nn.init._calculate_fan_in_and_fan_out(gt.ones(2, 3, 4)) == (12, 8)
    assert torch.nn.init._calculate_fan_in_and_fan_out(torch.ones(2, 3, 4)) == (12, 8)


def test_a_number_is_in_a_tensor_of_any_shape() -> None:
    for m in (gt, torch):
        x = m.arange(6).reshape(2, 3)
        assert 3 in x and 7 not in x and m.tensor([[0], [9]]) in x and True in (x > 4)
        with pytest.raises(RuntimeError):
            assert "a" in x


def test_forms_in_place_that_take_another_shape() -> None:
    found = []
    for m in (gt, torch):
        a = m.tensor([2.0], requires_grad=True)
        x = a.clone()
        assert x.addbmm_(m.ones(2, 2, 3), m.ones(2, 3, 2), beta=0.5) is x
        (x * m.arange(4.0).reshape(2, 2)).sum().backward()
        y = m.arange(6.0)
        assert y.as_strided_((2, 3), (1, 2), 0) is y
        z = m.tensor(3.0)
        assert z.transpose_(0, -1) is z
        found.append((x.tolist(), a.grad.tolist(), y.tolist(), z.tolist(), m.ones(2, 3).transpose(dim0=0, dim1=1).tolist()))
    assert found[0] == found[1]


MIXED: dict[str, Any] = {
    "mse_loss bool": lambda m, x: m.nn.functional.mse_loss(x, x > 0),
    "smooth_l1_loss bool": lambda m, x: m.nn.functional.smooth_l1_loss(x, x > 0),
    "huber_loss wider": lambda m, x: m.nn.functional.huber_loss(x, x.double() + 1),
    "soft_margin_loss wider": lambda m, x: m.nn.functional.soft_margin_loss(x, x.double().sign()),
    "logits wider": lambda m, x: m.nn.functional.binary_cross_entropy_with_logits(x.double(), (x > 0).float()),
    "cosine_similarity whole": lambda m, x: m.nn.functional.cosine_similarity(x, (x * 3).long(), dim=0),
    "diagonal_scatter": lambda m, x: m.zeros(4, 4, dtype=m.int32).diagonal_scatter(x),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_dtypes_give_pytorchs_dtype(name: str) -> None:
    x = [-1.5, 0.25, 0.5, 2.0]
    own, theirs = MIXED[name](gt, gt.tensor(x)), MIXED[name](torch, torch.tensor(x))
    assert own.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert np.allclose(own.numpy(), theirs.numpy(), atol=1e-5)


def test_targets_of_another_dtype_are_refused() -> None:
    for m in (gt, torch):
        x = m.tensor([0.25, 0.5])
        for loss in (m.nn.BCELoss(), m.nn.BCEWithLogitsLoss()):
            with pytest.raises(RuntimeError):
                loss(x, m.tensor([0, 1]))


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")
def test_numbers_of_numpy_in_lists_bring_their_dtype() -> None:
    f, d, i = np.float32(1), np.float64(1), np.int32(1)
    for data in (
        [d],
        [f, 1.5],
        (d, 1),
        [i, 1],
        [i, 1.5],
        [[1.5], [d]],
        [np.ones(2)],
        [np.float16(1)],
        [f, d],
        [],
        [[]],
        [1.5, True],
    ):
        assert gt.tensor(data).dtype.name == str(torch.tensor(data).dtype).removeprefix("torch."), data


def test_gradients_are_wanted_or_not_of_leaves() -> None:
    for m in (gt, torch):
        x = m.ones(2, requires_grad=True)
        y = x * 2
        for off in (lambda y: setattr(y, "requires_grad", False), lambda y: y.requires_grad_(False)):
            with pytest.raises(RuntimeError, match="leaf variables"):
                off(y)
        assert y.requires_grad_().requires_grad
        for on in (lambda n: setattr(n, "requires_grad", True), lambda n: n.requires_grad_()):
            with pytest.raises(RuntimeError):
                on(m.arange(2))
        x.requires_grad = False
        assert not (x * 2).requires_grad


def test_a_held_gradient_sees_later_accumulation() -> None:
    for m in (gt, torch):
        x = m.ones(2, requires_grad=True)
        (x * 3).sum().backward()
        held = x.grad
        part = held[:1]
        (x * 2).sum().backward()
        assert x.grad is held and held.tolist() == [5.0, 5.0] and part.tolist() == [5.0]
        x.grad.zero_()
        m.autograd.backward((x * 4).sum(), inputs=[x])
        assert x.grad is held and held.tolist() == [4.0, 4.0]
        x.grad = None
        (x * 2).sum().backward()
        assert held.tolist() == [4.0, 4.0] and x.grad.tolist() == [2.0, 2.0]


def test_factors_of_whole_numbers_are_whole() -> None:
    for m in (gt, torch):
        a, b = m.full((1, 2, 2), 2), m.full((1, 2, 2), 3)
        assert m.baddbmm(b, a, a, beta=1.9, alpha=0.5).tolist() == b.tolist()
        assert m.addmm(b[0], a[0], a[0], beta=0.9, alpha=1.5).tolist() == [[8, 8], [8, 8]]


NAMED: dict[str, Any] = {
    "sum": lambda m, x: m.sum(input=x, dim=1),
    "mul": lambda m, x: m.mul(input=x, other=x),
    "exp": lambda m, x: m.exp(input=x),
    "gt": lambda m, x: x.gt(other=0),
    "pow": lambda m, x: m.pow(x, exponent=2) + x.pow(exponent=2),
    "matmul": lambda m, x: m.matmul(input=x, other=m.transpose(input=x, dim0=0, dim1=1)),
    "softmax": lambda m, x: m.softmax(input=x, dim=1),
    "permute": lambda m, x: m.permute(x, dims=(1, 0)),
    "reshape": lambda m, x: x.reshape(shape=(3, 2)) + x.view(size=(3, 2)),
    "expand": lambda m, x: x[:1].expand(size=(4, 3)),
    "repeat": lambda m, x: x.repeat(repeats=(1, 2)) + m.tile(x, dims=(1, 2)),
    "split": lambda m, x: m.split(tensor=x, split_size_or_sections=2, dim=1)[0] + x.split(split_size=2, dim=1)[0],
    "flatten": lambda m, x: m.flatten(input=m.unsqueeze(input=x, dim=0), start_dim=1),
    "sort": lambda m, x: m.sort(input=x, dim=1, descending=True)[0] + m.flip(input=x, dims=(0,)),
    "linear": lambda m, x: m.nn.functional.linear(input=x, weight=x),
    "new_zeros": lambda m, x: x.new_zeros(size=(2, 2)),
    "dot": lambda m, x: m.dot(input=x[0], tensor=x[1]),
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_have_pytorchs_names(name: str) -> None:
    x = [[-1.5, 0.25, 0.5], [2.0, -0.5, 1.0]]
    own, theirs = NAMED[name](gt, gt.tensor(x)), NAMED[name](torch, torch.tensor(x))
    assert np.allclose(own.numpy(), theirs.numpy(), atol=1e-5)
    assert gt.ones(1).requires_grad_(requires_grad=True).requires_grad


def test_a_module_in_another_dtype_converts_gradients_that_others_hold() -> None:
    for m in (gt, torch):
        layer = m.nn.Linear(2, 2)
        layer(m.ones(1, 2)).sum().backward()
        held = layer.weight.grad
        layer.double()
        assert layer.weight.grad is held and held.dtype == m.float64 and held.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_gradient_of_another_shape_dtype_or_type_is_refused_on_its_line() -> None:
    for m in (gt, torch):
        x = m.ones(2, 3, requires_grad=True)
        kept = x.grad = m.full((2, 3), 2.0)
        for wrong in (m.ones(3), m.ones(2, 1), m.ones(2, 3, dtype=m.float64), x):
            with pytest.raises(RuntimeError):
                x.grad = wrong
        for odd in (3, "text", np.ones((2, 3), "float32")):
            with pytest.raises(TypeError):
                x.grad = odd
        assert x.grad is kept
        (x * 3).sum().backward()
        assert kept.tolist() == [[5.0] * 3] * 2
        x.grad = None
        assert x.grad is None
