"""Functions of functions, and the assertions of users' tests, against PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import numbers

X, Y = numbers(3), numbers(2, 3, seed=1)


@pytest.fixture(autouse=True)
def cluster():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


def leaves(value: Any) -> list:
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in leaves(v)]
    if isinstance(value, dict):
        return [leaf for k in sorted(value) for leaf in leaves(value[k])]
    return [value]


def same(script: Any) -> None:
    own, theirs = leaves(script(gt)), leaves(script(torch))
    assert len(own) == len(theirs) > 0
    for a, b in zip(own, theirs):
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-5)


def cubes(x, y):
    return (x**3 * y).sum()


def several(x, y):
    return {"a": x * y, "b": (x.sin() @ x, y)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", [
    lambda m: m.func.hessian(lambda x: (x**3).sum() * x.prod())(m.tensor(X)),
    lambda m: m.func.hessian(cubes, argnums=(0, 1))(m.tensor(X), m.tensor(Y)),
    lambda m: m.func.hessian(cubes, argnums=1)(m.tensor(X), m.tensor(Y)),
    lambda m: m.func.jacrev(several)(m.tensor(X), m.tensor(Y)),
    lambda m: m.func.jacrev(several, argnums=(1, 0))(m.tensor(X), m.tensor(Y)),
    lambda m: m.func.jacfwd(lambda x, y: (x * y, y), argnums=1, has_aux=True)(m.tensor(X), m.tensor(Y)),
    lambda m: m.func.jacrev(lambda p: p["w"] * p["b"])({"w": m.tensor(X), "b": m.tensor(X * 2)}),
    lambda m: m.func.linearize(lambda x: x.sin() * x, m.tensor(X))[1](m.tensor(X * 0.5)),
    lambda m: m.func.hessian(m.func.grad(lambda x: (x**4).sum()))(m.tensor(X)),
], ids=range(9))  # fmt: skip
def test_derivatives_are_pytorchs(script: Any) -> None:
    same(script)


def test_the_state_of_several_models_and_a_call_with_it() -> None:
    def script(m: Any) -> Any:
        models = [m.nn.Linear(3, 2) for _ in range(2)]
        for i, model in enumerate(models):
            model.load_state_dict({"weight": m.tensor(numbers(2, 3, seed=i)), "bias": m.tensor(numbers(2, seed=5 + i))})
        params, buffers = m.func.stack_module_state(models)
        assert all(p.requires_grad for p in params.values())
        one = m.func.vmap(lambda p, x: m.func.functional_call(models[0], p, (x,)), in_dims=(0, None))
        return params, buffers, one(params, m.tensor(Y))

    same(script)


def test_a_call_replaces_a_tied_parameter_under_all_its_names() -> None:
    def script(m: Any) -> Any:
        class Tied(m.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = m.nn.Linear(3, 3, bias=False)
                self.b = m.nn.Linear(3, 3, bias=False)
                self.b.weight = self.a.weight
                self.rest = m.nn.ParameterList([m.ones(3)])

            def forward(self, x):
                return self.b(self.a(x)) + self.rest[0]

        model = Tied()
        given = {"a.weight": m.tensor(numbers(3, 3)), "rest.0": m.tensor(X)}
        found = m.func.functional_call(model, given, m.tensor(Y))
        with pytest.raises(RuntimeError):
            m.func.functional_call(model, {"a.weight": m.ones(3, 3)}, m.tensor(Y), strict=True)
        assert model.a.weight is model.b.weight and isinstance(model.a.weight, m.nn.Parameter)
        return found

    same(script)


CLOSE: list[tuple[Any, Any, dict]] = [
    ([1.0, 2.0], [1.0, 2.0 + 1e-7], {}), ([1.0, 2.0], [1.0, 2.1], {}), ([1.0, 2.0], [1.0, 2.1], {"rtol": 0.1, "atol": 0.0}),
    ([math.nan], [math.nan], {}), ([math.nan], [math.nan], {"equal_nan": True}), ([1, 2], [1, 3], {}), ([1, 2], [1.0, 2.0], {}),
    ([1, 2], [1.0, 2.0], {"check_dtype": False}), ([[1.0]], [1.0], {}), ([math.inf], [math.inf], {}), ([True], [False], {}),
]  # fmt: skip


@pytest.mark.parametrize("actual, expected, keywords", CLOSE, ids=str)
def test_closeness_is_pytorch_s(actual: Any, expected: Any, keywords: dict) -> None:
    def verdict(m: Any) -> str:
        try:
            m.testing.assert_close({"x": [m.tensor(actual)]}, {"x": [m.tensor(expected)]}, **keywords)
        except AssertionError as wrong:
            return str(wrong).split(" ")[0]
        return "close"

    assert verdict(gt) == verdict(torch)


def test_an_assertion_names_the_position_of_the_greatest_difference() -> None:
    with pytest.raises(
        AssertionError, match=r"Mismatched elements: 1 / 3 \(33.3%\)\nGreatest absolute difference: 1.0 at index \(2,\)"
    ):
        gt.testing.assert_close(gt.tensor([0.0, 1.0, 3.0]), gt.tensor([0.0, 1.0, 2.0]))
    with pytest.raises(AssertionError, match="mine"):
        gt.testing.assert_close(1.0, 2.0, msg="mine")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "uint8", "bool", "complex64"])
def test_made_tensors_lie_between_low_and_high(name: str) -> None:
    made = gt.testing.make_tensor((4, 5), dtype=getattr(gt, name), device="cpu")
    assert made.shape == (4, 5) and made.dtype is getattr(gt, name)
    if name in ("float32", "int64"):
        inside = gt.testing.make_tensor(100, dtype=getattr(gt, name), low=2, high=5).numpy()
        assert inside.min() >= 2 and inside.max() <= 5


@pytest.mark.parametrize("script", [
    lambda m: m.linalg.cholesky(-m.eye(2)), lambda m: m.linalg.inv(m.zeros(2, 2)),
    lambda m: m.linalg.solve(m.zeros(2, 2), m.ones(2, 1)), lambda m: m.linalg.inv_ex(m.zeros(2, 2), check_errors=True)[0],
    lambda m: m.linalg.svdvals(m.full((2, 2), math.nan)),
], ids=["cholesky", "inv", "solve", "inv_ex", "svdvals"])  # fmt: skip
@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_a_matrix_that_will_not_do_is_a_linalg_error(m: Any, script: Any) -> None:
    """GT's is raised where the result is read."""
    with pytest.raises(m.linalg.LinAlgError):
        script(m).numpy()


@pytest.mark.parametrize("count, chance", [(5.0, 0.3), (20.0, 0.9), (1000.0, 0.5), (100.0, 0.02), (7.0, 1.0)])
def test_binomial_numbers_have_their_mean_and_variance(count: float, chance: float) -> None:
    gt.manual_seed(0)
    drawn = gt.binomial(gt.full((20000,), count), gt.full((20000,), chance)).numpy()
    assert drawn.mean() == pytest.approx(count * chance, rel=0.03)
    assert drawn.var() == pytest.approx(count * chance * (1 - chance), rel=0.06)
    assert drawn.min() >= 0 and drawn.max() <= count and (drawn == np.floor(drawn)).all()


@pytest.mark.parametrize("rate", [0.5, 9.0, 200.0])
def test_poisson_numbers_have_their_mean_and_variance(rate: float) -> None:
    gt.manual_seed(0)
    drawn = gt.poisson(gt.full((20000,), rate)).numpy()
    assert drawn.mean() == pytest.approx(rate, rel=0.03) and drawn.var() == pytest.approx(rate, rel=0.06)
    own = gt.Generator().manual_seed(3)
    first = gt.poisson(gt.full((9,), rate), generator=own).tolist()
    assert first == gt.poisson(gt.full((9,), rate), generator=own.manual_seed(3)).tolist()


def test_counts_of_impossible_chances_are_refused() -> None:
    for m in (gt, torch):
        with pytest.raises(RuntimeError):
            m.poisson(m.tensor([-1.0]))
    with pytest.raises(RuntimeError, match="a chance is from 0 to 1"):  # PyTorch gives numbers
        gt.binomial(gt.tensor([3.0]), gt.tensor([1.5]))


@pytest.mark.parametrize("m", [gt, torch], ids=["gt", "torch"])
def test_random_writes_take_a_generator_and_a_bound(m: Any) -> None:
    drawn = [m.zeros(50).random_(7, generator=m.Generator().manual_seed(1)) for _ in range(2)]
    assert m.equal(*drawn) and drawn[0].min().item() >= 0 and drawn[0].max().item() == 6
    for name, args in (("uniform_", ()), ("normal_", ()), ("exponential_", ()), ("bernoulli_", ()), ("geometric_", (0.5,))):
        drawn = [getattr(m.zeros(9), name)(*args, generator=m.Generator().manual_seed(1)) for _ in range(2)]
        assert m.equal(*drawn)
