"""Every distribution against PyTorch's: densities, moments, gradients by parameters, divergences; samples by their moments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import close

D, T = gt.distributions, torch.distributions
pytestmark = pytest.mark.filterwarnings("ignore:Singular sample detected")  # PyTorch's Wishart, which then draws again
rng = np.random.default_rng(3)
POSITIVE = rng.uniform(0.5, 3.0, (3,)).astype(np.float32)
OTHER = rng.uniform(0.6, 2.5, (3,)).astype(np.float32)
REAL = rng.normal(size=3).astype(np.float32)
SHARE = rng.uniform(0.1, 0.9, 3).astype(np.float32)
SIMPLEX = rng.dirichlet(np.ones(4), 2).astype(np.float32)
LOGITS = rng.normal(size=(2, 4)).astype(np.float32)
LOWER = (np.tril(rng.normal(size=(2, 3, 3)), -1) * 0.3 + np.eye(3) * [1.0, 1.5, 0.7]).astype(np.float32)
COVARIANCE = (LOWER @ LOWER.transpose(0, 2, 1)).astype(np.float32)

CASES: list[tuple[str, dict[str, Any]]] = [
    ("Bernoulli", {"probs": SHARE}), ("Bernoulli", {"logits": REAL}),
    ("Beta", {"concentration1": POSITIVE, "concentration0": OTHER}),
    ("Binomial", {"total_count": 5, "probs": SHARE}), ("Categorical", {"probs": SIMPLEX}), ("Categorical", {"logits": LOGITS}),
    ("Cauchy", {"loc": REAL, "scale": POSITIVE}), ("Chi2", {"df": POSITIVE}),
    ("ContinuousBernoulli", {"probs": np.float32([0.2, 0.4999, 0.9])}), ("Dirichlet", {"concentration": SIMPLEX * 5}),
    ("Exponential", {"rate": POSITIVE}), ("FisherSnedecor", {"df1": POSITIVE + 2, "df2": OTHER + 6}),
    ("Gamma", {"concentration": POSITIVE, "rate": OTHER}), ("Geometric", {"probs": SHARE}),
    ("GeneralizedPareto", {"loc": REAL, "scale": POSITIVE, "concentration": np.float32([0.2, 0.0, 0.4])}),
    ("Gumbel", {"loc": REAL, "scale": POSITIVE}), ("HalfCauchy", {"scale": POSITIVE}), ("HalfNormal", {"scale": POSITIVE}),
    ("InverseGamma", {"concentration": POSITIVE + 2.5, "rate": OTHER}),
    ("Kumaraswamy", {"concentration1": POSITIVE + 1, "concentration0": OTHER + 1}),
    ("Laplace", {"loc": REAL, "scale": POSITIVE}),
    ("LKJCholesky", {"dim": 3, "concentration": np.float32(1.5)}), ("LogNormal", {"loc": REAL, "scale": POSITIVE * 0.3}),
    ("LogisticNormal", {"loc": LOGITS, "scale": np.abs(LOGITS) + 0.1}),
    ("LowRankMultivariateNormal", {"loc": LOWER[:, 0], "cov_factor": LOWER[:, :, :2], "cov_diag": np.abs(LOWER[:, 1]) + 0.5}),
    ("Multinomial", {"total_count": 4, "probs": SIMPLEX}), ("MultivariateNormal", {"loc": LOWER[:, 0], "scale_tril": LOWER}),
    ("MultivariateNormal", {"loc": LOWER[:, 0], "covariance_matrix": COVARIANCE}),
    ("MultivariateNormal", {"loc": LOWER[:, 0], "precision_matrix": COVARIANCE}),
    ("NegativeBinomial", {"total_count": 3.0, "probs": SHARE}), ("Normal", {"loc": REAL, "scale": POSITIVE}),
    ("OneHotCategorical", {"probs": SIMPLEX}), ("OneHotCategoricalStraightThrough", {"logits": LOGITS}),
    ("Pareto", {"scale": POSITIVE, "alpha": OTHER + 2}), ("Poisson", {"rate": POSITIVE * 4}),
    ("RelaxedBernoulli", {"temperature": np.float32(0.7), "probs": SHARE}),
    ("RelaxedOneHotCategorical", {"temperature": np.float32(0.7), "logits": LOGITS}),
    ("StudentT", {"df": POSITIVE + 3, "loc": REAL, "scale": OTHER}), ("Uniform", {"low": REAL, "high": REAL + POSITIVE}),
    ("VonMises", {"loc": REAL, "concentration": POSITIVE * np.float32([0.5, 2, 30])}),
    ("Weibull", {"scale": POSITIVE, "concentration": OTHER}), ("Wishart", {"df": np.float32([4.0, 5.5]), "scale_tril": LOWER}),
]  # fmt: skip
IDS = [f"{name}-{'-'.join(p)}" for name, p in CASES]
DISCRETE = {"Bernoulli", "Binomial", "Categorical", "Geometric", "Multinomial", "NegativeBinomial", "OneHotCategorical",
            "OneHotCategoricalStraightThrough", "Poisson"}  # fmt: skip


@pytest.fixture(autouse=True)
def cluster():
    with gt.testing.cluster(1, "pytorch") as made:
        yield made


def both(name: str, params: dict[str, Any], requires_grad: bool = False) -> tuple[Any, Any, list, list]:
    made, leaves = [], []
    for lib, module in ((gt, D), (torch, T)):
        given = {k: lib.tensor(np.array(v)) if isinstance(v, np.ndarray | np.generic) else v for k, v in params.items()}
        if requires_grad:
            for value in given.values():
                if not isinstance(value, (int, float)):
                    value.requires_grad_()
        made.append(getattr(module, name)(**given))
        leaves.append([v for v in given.values() if not isinstance(v, (int, float))])
    return made[0], made[1], leaves[0], leaves[1]


@pytest.mark.parametrize("name, params", CASES, ids=IDS)
def test_densities_and_their_gradients_are_pytorchs(name: str, params: dict) -> None:
    own, theirs, mine, yours = both(name, params, requires_grad=True)
    assert own.batch_shape == theirs.batch_shape and own.event_shape == theirs.event_shape
    assert own.has_rsample == theirs.has_rsample
    torch.manual_seed(0)
    value = theirs.sample((5,))
    own.sample()  # computes without gradients values that log_prob() may use, too
    a, b = own.log_prob(gt.from_torch(value)), theirs.log_prob(value)
    close(a, b.detach(), name, 1e-3, 1e-4)
    a.sum().backward()
    b.sum().backward()
    for p, q in zip(mine, yours):
        if q.grad is not None:
            triangle = "scale_tril" in params and q.ndim > 2  # PyTorch's gradient has numbers above the diagonal, too
            g, h = (x.tril() if triangle else x for x in (p.grad, q.grad))
            close(g, h, f"{name} gradient", 5e-3, 2e-3)
    for method in ("cdf", "icdf"):
        given = value if method == "cdf" else torch.rand(5, *theirs.batch_shape) * 0.9 + 0.05
        try:
            want = getattr(theirs, method)(given)
        except NotImplementedError:
            continue
        close(getattr(own, method)(gt.from_torch(given)).detach(), want.detach(), f"{name}.{method}", 1e-3, 1e-3)


@pytest.mark.parametrize("name, params", CASES, ids=IDS)
def test_moments_entropy_and_support_are_pytorchs(name: str, params: dict) -> None:
    own, theirs, _, _ = both(name, params)
    for what in ("mean", "variance", "stddev", "mode", "entropy", "perplexity"):
        if (name, what) == ("Kumaraswamy", "mode"):  # PyTorch's takes the logarithm of a negative number: always nan
            continue
        try:
            want = getattr(theirs, what)
            want = want() if callable(want) else want
        except NotImplementedError:
            continue
        found = getattr(own, what)
        close(found() if callable(found) else found, want, f"{name}.{what}", 1e-3, 1e-3)
    torch.manual_seed(1)
    value = theirs.sample((4,))
    assert bool(own.support.check(gt.from_torch(value)).all()), own.support
    if theirs.has_enumerate_support:
        for expand in (True, False):
            close(own.enumerate_support(expand), theirs.enumerate_support(expand), name)


@pytest.mark.parametrize("name, params", CASES, ids=IDS)
def test_samples_have_the_shape_and_the_moments(name: str, params: dict) -> None:
    """Means of 4,000 samples lie within 6 standard errors of the mean, where there is one."""
    own, theirs, _, _ = both(name, params)
    gt.manual_seed(5)
    drawn = own.sample((4000,))
    assert drawn.shape == (4000, *theirs.batch_shape, *theirs.event_shape) and not drawn.requires_grad
    value = drawn.detach().torch()
    assert bool(theirs.support.check(value if value.dtype != torch.int32 else value.long()).all()), name
    assert own.expand((2, *own.batch_shape)).sample().shape == (2, *theirs.batch_shape, *theirs.event_shape)
    try:
        mean, deviation = theirs.mean, theirs.stddev
    except NotImplementedError:
        mean, deviation = theirs.sample((4000,)).mean(0), theirs.sample((4000,)).std(0) * math.sqrt(2)
    if (
        name == "LKJCholesky"
    ):  # PyTorch's samples do not follow its own density; by that, a row's squared length is a beta number
        squared = (value[:, 2, :2] ** 2).sum(-1)
        value, mean, deviation = squared, torch.tensor(1 / 2.5), torch.tensor(0.27)
    if name == "VonMises":  # on a circle, means are of directions
        value, mean, deviation = (value - theirs.loc).sin(), torch.zeros(()), torch.ones(())
    settled = torch.isfinite(mean) & torch.isfinite(deviation)
    error = (value.double().mean(0) - mean).abs() / (deviation / math.sqrt(4000) + 1e-9)
    assert bool((error[settled & (deviation > 1e-6)] < 6).all()), (name, error)


@pytest.mark.parametrize(
    "name, params", [c for c in CASES if getattr(T, c[0]).has_rsample is True], ids=lambda v: v if isinstance(v, str) else ""
)
def test_gradients_flow_through_samples(name: str, params: dict) -> None:
    """The mean's gradient by each parameter, from samples, is near the gradient of the mean itself."""
    own, theirs, mine, yours = both(name, params, requires_grad=True)
    gt.manual_seed(2)
    own.rsample((3000,)).mean(0).sum().backward()
    assert all(p.grad is not None and np.isfinite(p.grad.numpy()).all() for p in mine), name
    try:
        theirs.mean.sum().backward()
    except (NotImplementedError, RuntimeError):
        return
    for p, q in zip(mine, yours):
        want = torch.zeros_like(q) if q.grad is None else q.grad
        if name not in (
            "Cauchy",
            "HalfCauchy",
            "Pareto",
            "GeneralizedPareto",
            "FisherSnedecor",
            "Wishart",
            "ContinuousBernoulli",
        ) and bool(torch.isfinite(want).all()):
            np.testing.assert_allclose(
                p.grad.numpy(), want.numpy(), atol=0.25 * max(1.0, float(want.abs().max())), err_msg=name
            )


def test_the_gradient_of_gamma_samples_is_pytorchs() -> None:
    from gt.distributions.sampling import gamma_gradient

    a = torch.tensor(rng.uniform(1.0, 20.0, 200), dtype=torch.float64)
    x = torch.distributions.Gamma(a, 1.0).sample()
    close(gamma_gradient(gt.from_torch(a), gt.from_torch(x)), torch._standard_gamma_grad(a, x), "gamma", 1e-3, 1e-5)


def test_divergences_are_pytorchs() -> None:
    scaled = ("scale", "concentration", "rate", "df")
    others = [(name, {k: v * 1.2 if k in scaled and isinstance(v, np.ndarray) else v for k, v in params.items()})
              for name, params in CASES]  # fmt: skip
    first, second = ([both(name, params)[:2] for name, params in cases] for cases in (CASES, others))
    compared = 0
    for (name, _), (own_p, their_p) in zip(CASES, first):
        for (other, _), (own_q, their_q) in zip(CASES, second):
            try:
                want = T.kl_divergence(their_p, their_q)
            except (NotImplementedError, ValueError, RuntimeError):
                continue
            try:
                found = D.kl_divergence(own_p, own_q)
            except NotImplementedError:
                assert name != other or name == "Kumaraswamy", f"no divergence of {name} and itself"
                continue
            if name == other == "Wishart":  # PyTorch's is negative, which no divergence is: by its definition, then
                value = own_p.sample((20000,))
                want = (own_p.log_prob(value) - own_q.log_prob(value)).mean(0).torch()
                close(found, want, "KL(Wishart, Wishart)", 0.1, 0.03)
                continue
            close(found, want, f"KL({name}, {other})", 2e-3, 2e-3)
            compared += 1
    assert compared >= 35


def test_transforms_are_pytorchs() -> None:
    x = np.float32([[0.3, -0.7, 1.1], [0.2, 0.5, -0.4]])
    cases = [("ExpTransform", ()), ("SigmoidTransform", ()), ("TanhTransform", ()), ("SoftplusTransform", ()),
             ("AffineTransform", (0.5, -2.0)), ("StickBreakingTransform", ()), ("CorrCholeskyTransform", ()),
             ("AffineTransform", (0.5, 2.0, 1))]  # fmt: skip
    for name, args in cases:
        own, theirs = getattr(D, name)(*args), getattr(T, name)(*args)
        a, b = own(gt.tensor(x)), theirs(torch.tensor(x))
        close(a, b, name, 1e-5, 1e-5)
        close(own.inv(a), theirs.inv(b), f"{name} inverse", 1e-4, 1e-4)
        close(own.log_abs_det_jacobian(gt.tensor(x), a), theirs.log_abs_det_jacobian(torch.tensor(x), b), name, 1e-4, 1e-4)
        assert own.forward_shape((2, 3)) == tuple(theirs.forward_shape((2, 3)))


def test_composite_distributions_are_pytorchs() -> None:
    def made(lib: Any, dist: Any) -> list[Any]:
        t = lambda a: lib.tensor(np.float32(a))  # noqa: E731
        normal = dist.Normal(t(REAL), t(POSITIVE))
        return [
            dist.Independent(normal, 1),
            dist.MixtureSameFamily(dist.Categorical(t([0.2, 0.5, 0.3])), normal),
            dist.TransformedDistribution(normal, [dist.AffineTransform(1.0, 2.0), dist.SigmoidTransform()]),
            dist.TransformedDistribution(dist.Normal(t(LOGITS), t(np.ones_like(LOGITS))), dist.StickBreakingTransform()),
        ]

    for own, theirs in zip(made(gt, D), made(torch, T)):
        assert own.batch_shape == theirs.batch_shape and own.event_shape == theirs.event_shape, theirs
        torch.manual_seed(0)
        value = theirs.sample((4,))
        close(own.log_prob(gt.from_torch(value)), theirs.log_prob(value), str(theirs), 1e-3, 1e-3)
        assert own.sample((2,)).shape == theirs.sample((2,)).shape
        for what in ("mean", "variance"):
            if isinstance(theirs, (T.Independent, T.MixtureSameFamily)):
                close(getattr(own, what), getattr(theirs, what), what, 1e-4, 1e-4)


def test_constraints_lead_to_transforms() -> None:
    for constraint in (D.constraints.positive, D.constraints.unit_interval, D.constraints.interval(-1.0, 3.0),
                       D.constraints.simplex, D.constraints.lower_cholesky, D.constraints.less_than(2.0)):  # fmt: skip
        x = gt.randn(2, 3, 3)
        assert bool(constraint.check(D.transform_to(constraint)(x)).all()), constraint
    with pytest.raises(NotImplementedError, match="boolean"):
        D.biject_to(D.constraints.boolean)


def test_wrong_parameters_and_values_are_refused() -> None:
    with pytest.raises(ValueError, match="scale is -1.0, outside of positive"):
        D.Normal(0.0, -1.0)
    with pytest.raises(ValueError, match="either probs or logits"):
        D.Bernoulli()
    with pytest.raises(ValueError, match="scale of shape"):
        D.Normal(gt.zeros(2), gt.tensor([1.0, -1.0]), validate_args=True)
    with pytest.raises(ValueError, match="outside of"):
        D.Bernoulli(gt.tensor([0.5]), validate_args=True).log_prob(gt.tensor([0.3]))
    with pytest.raises(ValueError, match="low is 2.0 and high 1.0"):
        D.Uniform(2.0, 1.0)
    with pytest.raises(ValueError, match="does not broadcast"):
        D.Normal(gt.zeros(3), gt.ones(3)).log_prob(gt.zeros(2))
    with pytest.raises(NotImplementedError, match="register_kl"):
        D.kl_divergence(D.Normal(0.0, 1.0), D.Categorical(gt.tensor([1.0])))


def test_small_tensors_of_this_client_are_checked_at_once() -> None:
    for lib, dist in ((gt, D), (torch, T)):
        with pytest.raises(ValueError):
            dist.Normal(lib.tensor(0.0), lib.tensor(-1.0))
        with pytest.raises(ValueError):
            dist.Normal(lib.tensor([0.0, 1.0]), lib.tensor([[1.0], [-1.0]]))
        with pytest.raises(ValueError):
            dist.Bernoulli(lib.tensor([0.5])).log_prob(lib.tensor([0.3]))
        with pytest.raises(RuntimeError):
            lib.multinomial(lib.tensor([0.0, 0.0]), 1)
        dist.Normal(lib.tensor([0.0]), lib.tensor([-1.0]), validate_args=False)
    assert gt.zeros(1).item() == 0.0  # and nothing is left to be raised


WRONG: dict[str, Any] = {
    "parameter": lambda lib, dist, x: dist.Normal(lib.zeros(4), -x),
    "normalized": lambda lib, dist, x: dist.Categorical(probs=x * lib.tensor([1.0, -0.1, 1.0, 1.0])),
    "value": lambda lib, dist, x: dist.Exponential(x).log_prob(-x),
    "bounds": lambda lib, dist, x: dist.Uniform(x, x - 1),
    "matrix": lambda lib, dist, x: dist.MultivariateNormal(x, -lib.eye(4)),
    "multinomial": lambda lib, dist, x: lib.multinomial(-x, 2),
    "bernoulli": lambda lib, dist, x: lib.bernoulli(x + 1),
    "loss": lambda lib, dist, x: lib.nn.functional.binary_cross_entropy(x + 1, lib.ones(4)),
    "normal": lambda lib, dist, x: lib.normal(lib.zeros(4), -x),
}


@pytest.mark.parametrize("name", WRONG)
def test_values_on_the_workers_are_checked_without_waiting_and_refused_at_the_next_read(name: str) -> None:
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        WRONG[name](torch, T, torch.rand(4) + 1)
    made = WRONG[name](gt, D, gt.rand(4) + 1)
    checks = gt.client.here.here().session.checks
    assert checks.added > 0 and checks.answered == 0  # nothing was read
    with pytest.raises(theirs.type, match="asked for at(.|\n)*test_distributions.py"):
        gt.zeros(1).item()
    assert checks.answered == checks.added
    assert gt.zeros(1).item() == 0.0 and made is not None


def test_a_loop_that_reads_nothing_keeps_one_condition_for_a_line_and_none_is_forgotten() -> None:
    for i in range(5):
        D.Normal(gt.zeros(4), (gt.rand(4) + 1) * (1 - i * (i == 2)))  # the third has negative deviations
    checks = gt.client.here.here().session.checks
    assert checks.added == 10 and len(checks.pending) == 2
    with pytest.raises(ValueError, match="scale of shape"):
        gt.zeros(1).item()


def test_samples_are_the_same_on_every_engine_and_number_of_workers() -> None:
    found = []
    for engine, workers in (("numpy", 1), ("pytorch", 1), ("numpy", 3)):
        with gt.testing.cluster(workers, engine):
            gt.manual_seed(11)
            gammas = D.Gamma(gt.tensor([0.5, 2.0, 9.0]), 1.0).sample((4,))
            found.append([gammas.numpy(), D.Poisson(gt.tensor([2.0, 40.0])).sample((4,)).numpy()])
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_allclose(a, b, rtol=1e-5)
