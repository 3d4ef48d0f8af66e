"""Every loss against PyTorch's, as a function and as a module."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, close, numbers, to_gt, to_torch

F, T = gt.nn.functional, torch.nn.functional
X, Y = numbers(4, 5), numbers(4, 5, seed=3)
P, Q = numbers(4, 5, low=0.05, high=0.95), numbers(4, 5, seed=3, low=0.0, high=1.0)
EDGES = np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 1e-8]], np.float32)
HARD = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]], np.float32)
LABELS = np.array([0, 4, -100, 2])
WEIGHT = numbers(5, low=0.5, high=2.0)
IMG, PIXELS = numbers(2, 5, 3, 4), np.arange(24).reshape(2, 3, 4) % 5
LOGP = np.log(Q / Q.sum(1, keepdims=True))
SIGNS = np.array([1, -1, 1, -1])

# (function, inputs, keywords); the first input wants its gradient, arrays among keywords are constants
CASES = [
    ("mse_loss", (X, Y), {}),
    ("l1_loss", (X, Y), {}),
    ("smooth_l1_loss", (X, Y), {"beta": 0.6}),
    ("smooth_l1_loss", (X, Y), {"beta": 0.0}),
    ("huber_loss", (X, Y), {"delta": 0.6}),
    ("cross_entropy", (X, LABELS), {}),
    ("cross_entropy", (X, LABELS), {"weight": WEIGHT, "label_smoothing": 0.2}),
    ("cross_entropy", (X, np.array([0, 4, 3, 2])), {"ignore_index": 3, "label_smoothing": 0.1}),
    ("cross_entropy", (IMG, PIXELS), {"weight": WEIGHT}),
    ("cross_entropy", (X[0], np.array(3)), {}),
    ("cross_entropy", (X, Q / Q.sum(1, keepdims=True)), {"weight": WEIGHT, "label_smoothing": 0.1}),
    ("cross_entropy", (IMG, np.abs(numbers(2, 5, 3, 4, seed=5))), {}),
    ("nll_loss", (LOGP, LABELS), {}),
    ("nll_loss", (LOGP, LABELS), {"weight": WEIGHT}),
    ("nll_loss", (IMG, PIXELS), {"ignore_index": 2}),
    ("binary_cross_entropy", (P, Q), {}),
    ("binary_cross_entropy", (P, Q), {"weight": WEIGHT}),
    ("binary_cross_entropy", (EDGES, HARD), {}),
    ("binary_cross_entropy_with_logits", (X * 30, Q), {}),
    ("binary_cross_entropy_with_logits", (X, Q), {"weight": WEIGHT, "pos_weight": WEIGHT * 2}),
    ("binary_cross_entropy_with_logits", (X * 0, HARD[:1].repeat(4, 0)[:, [0, 1, 2, 0, 1]]), {}),
    ("kl_div", (LOGP, Q), {}),
    ("kl_div", (LOGP, np.where(Q < 0.4, 0, Q)), {"reduction": "batchmean"}),
    ("kl_div", (LOGP, LOGP[::-1].copy()), {"log_target": True}),
    ("cosine_embedding_loss", (X, Y, SIGNS), {"margin": 0.1}),
    ("margin_ranking_loss", (X[:, 0], Y[:, 0], SIGNS), {"margin": 0.3}),
    ("hinge_embedding_loss", (X[:, 0], SIGNS), {"margin": 0.8}),
    ("soft_margin_loss", (X[:, 0] * 30, SIGNS), {}),
    ("triplet_margin_loss", (X, Y, P), {"margin": 0.7, "swap": True}),
    ("triplet_margin_loss", (X, Y, P), {"p": 1.0}),
    ("triplet_margin_with_distance_loss", (X, Y, P), {"margin": 0.2}),
    ("multi_margin_loss", (X, np.array([0, 4, 3, 2])), {}),
    ("multi_margin_loss", (X, np.array([0, 4, 3, 2])), {"p": 2, "margin": 0.5, "weight": WEIGHT}),
    ("multilabel_margin_loss", (X, np.array([[3, 0, -1, 1, 2], [-1, 0, 0, 0, 0], [4, 3, 2, 1, 0], [2, -1, 2, 0, 0]])), {}),
    ("multilabel_soft_margin_loss", (X, np.round(Q)), {"weight": WEIGHT}),
    ("poisson_nll_loss", (X, np.round(Q * 5)), {}),
    ("poisson_nll_loss", (P, np.round(Q * 5)), {"log_input": False, "full": True}),
    ("gaussian_nll_loss", (X, Y, P), {"full": True}),
    ("gaussian_nll_loss", (X, Y, P[:, :1]), {"eps": 0.5}),
]
MODULES = {"mse_loss": "MSELoss", "l1_loss": "L1Loss", "smooth_l1_loss": "SmoothL1Loss", "huber_loss": "HuberLoss",
           "cross_entropy": "CrossEntropyLoss", "nll_loss": "NLLLoss", "binary_cross_entropy": "BCELoss",
           "binary_cross_entropy_with_logits": "BCEWithLogitsLoss", "kl_div": "KLDivLoss",
           "cosine_embedding_loss": "CosineEmbeddingLoss", "margin_ranking_loss": "MarginRankingLoss",
           "hinge_embedding_loss": "HingeEmbeddingLoss", "soft_margin_loss": "SoftMarginLoss",
           "triplet_margin_loss": "TripletMarginLoss",
           "triplet_margin_with_distance_loss": "TripletMarginWithDistanceLoss", "multi_margin_loss": "MultiMarginLoss",
           "multilabel_margin_loss": "MultiLabelMarginLoss", "multilabel_soft_margin_loss": "MultiLabelSoftMarginLoss",
           "poisson_nll_loss": "PoissonNLLLoss", "gaussian_nll_loss": "GaussianNLLLoss"}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")


def _run(functions: tuple, inputs: tuple, keywords: dict, first: int = 1) -> None:
    a = [to_gt(x, i < first) for i, x in enumerate(inputs)]
    b = [to_torch(x, i < first) for i, x in enumerate(inputs)]
    y = functions[0](*a, **{k: to_gt(v) for k, v in keywords.items()})
    z = functions[1](*b, **{k: to_torch(v) for k, v in keywords.items()})
    close(y, z, "loss", rtol=5e-5)
    seed = numbers(*z.shape, seed=9)
    (y * to_gt(seed)).sum().backward()
    (z * to_torch(seed)).sum().backward()
    for p, q in zip(a[:first], b[:first]):
        close(p.grad, q.grad, "gradient", rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{'-'.join(c[2])}")
def test_a_loss_is_pytorchs(engine: str, reduction: str, case: tuple) -> None:
    name, inputs, keywords = case
    with gt.testing.cluster(1, engine):
        first = {"cosine_embedding_loss": 2, "margin_ranking_loss": 2}.get(name, 3 if "triplet" in name else 1)
        _run((getattr(F, name), getattr(T, name)), inputs, {"reduction": reduction, **keywords}, first)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{'-'.join(c[2])}")
def test_a_loss_module_is_pytorchs(case: tuple) -> None:
    name, inputs, keywords = case
    with gt.testing.cluster(1, "pytorch"):
        own = getattr(gt.nn, MODULES[name])(**{k: to_gt(v) for k, v in keywords.items()})
        theirs = getattr(torch.nn, MODULES[name])(**{k: to_torch(v) for k, v in keywords.items()})
        _run((own, theirs), inputs, {})
        assert list(own.state_dict()) == list(theirs.state_dict())


def test_targets_of_a_loss_get_gradients_too() -> None:
    with gt.testing.cluster(1, "numpy"):
        for name in ("mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"):
            _run((getattr(F, name), getattr(T, name)), (P, Q), {}, 2)


def test_pytorchs_old_flags_choose_a_reduction() -> None:
    with gt.testing.cluster():
        for flags in ({"size_average": False}, {"reduce": False}, {"size_average": True}):
            _run((F.l1_loss, lambda *a, **k: _quiet(T.l1_loss, *a, **k)), (X, Y), flags)


def _quiet(function, *args, **keywords):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **keywords)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.mse_loss(x, x, reduction="men"),
        lambda x: F.cross_entropy(x, x.long()[0], reduction="men"),
        lambda x: F.cross_entropy(x, x, label_smoothing=2.0),
        lambda x: F.binary_cross_entropy(x, x[0]),
        lambda x: F.smooth_l1_loss(x, x, beta=-1.0),
    ],
)
def test_a_wrong_argument_of_a_loss_is_refused(call) -> None:
    with gt.testing.cluster(), pytest.raises(ValueError):
        call(gt.ones(3, 3))
