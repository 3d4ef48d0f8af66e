"""Functions of nn.functional that no module's test reaches, and their arguments."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, close, numbers, to_gt, to_torch

F, T = gt.nn.functional, torch.nn.functional
X, Y = numbers(3, 4), numbers(3, 4, seed=5)
IMG = numbers(2, 3, 5, 6)


def test_arguments_stand_in_pytorchs_order() -> None:
    checked = 0
    for name in F.__all__:
        try:
            theirs = inspect.signature(getattr(T, name))
        except (ValueError, AttributeError):
            continue  # written in C: no signature to read
        ours = list(inspect.signature(getattr(F, name)).parameters.values())
        for p, q in zip(ours, theirs.parameters.values()):
            if q.kind in (q.VAR_POSITIONAL, q.VAR_KEYWORD):
                break  # a dispatcher of PyTorch's, whose own arguments are elsewhere
            assert p.name == q.name, f"{name}: {p.name} where PyTorch has {q.name}"
            assert p.default == q.default or q.default is q.empty, f"{name}.{p.name}"
        checked += 1
    assert checked > 25


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name, inputs, keywords",
    [
        ("normalize", (X,), {"p": 2.0, "dim": 0}),
        ("normalize", (X,), {"p": 1.0}),
        ("cosine_similarity", (X, Y), {"dim": 0}),
        ("pad", (IMG,), {"pad": (1, 2, 0, 3), "value": 1.5}),
        ("pad", (IMG,), {"pad": (1, 2, 2, 0), "mode": "reflect"}),
        ("pad", (IMG[0],), {"pad": (1, 7), "mode": "replicate"}),
        ("pad", (IMG,), {"pad": (-1, 2), "mode": "constant"}),
        ("instance_norm", (IMG,), {}),
        ("one_hot", (np.array([0, 2, 1]),), {"num_classes": 4}),
        ("log_softmax", (X,), {"dim": 0}),
        ("softmin", (X,), {"dim": 1}),
        ("hardsigmoid", (X * 4,), {}),
        ("embedding", (np.array([[0, 2], [1, 1]]), X), {"padding_idx": 1}),
        ("max_pool2d", (IMG,), {"kernel_size": 2, "return_indices": True}),
        ("conv2d", (IMG, numbers(4, 3, 2, 2), numbers(4)), {"stride": 2}),
        ("huber_loss", (X, Y), {"delta": 0.5}),
    ],
)
def test_a_function_is_pytorchs(engine: str, name: str, inputs: tuple, keywords: dict) -> None:
    with gt.testing.cluster(1, engine):
        a, b = [to_gt(x, True) for x in inputs], [to_torch(x, True) for x in inputs]
        found, wanted = getattr(F, name)(*a, **keywords), getattr(T, name)(*b, **keywords)
        pairs = list(zip(found, wanted)) if isinstance(wanted, tuple) else [(found, wanted)]
        for y, z in pairs:
            close(y, z, name)
        y, z = pairs[0]
        if z.requires_grad:
            seed = numbers(*z.shape, seed=9)
            (y * to_gt(seed)).sum().backward()
            (z * to_torch(seed)).sum().backward()
            for p, q in zip(a, b):
                if isinstance(q, torch.Tensor) and q.requires_grad:
                    close(p.grad, q.grad, f"gradient of {name}", 1e-4, 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name, flag", [("batch_norm", "training"), ("instance_norm", "use_input_stats")])
@pytest.mark.parametrize("learns", [True, False])
def test_running_statistics_are_pytorchs(engine: str, name: str, flag: str, learns: bool) -> None:
    with gt.testing.cluster(1, engine):
        kept = numbers(3), numbers(3, low=0.5)
        a, b = [to_gt(x) for x in kept], [to_torch(x) for x in kept]
        x, y = to_gt(IMG, True), to_torch(IMG, True)
        close(getattr(F, name)(x, *a, **{flag: learns}), getattr(T, name)(y, *b, **{flag: learns}), name)
        for p, q in zip(a, b):
            close(p, q, "running")


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.conv2d(gt.ones(1, 2, 4, 4), gt.ones(3, 3, 2, 2)),
        lambda: F.conv2d(gt.ones(1, 2, 4, 4), gt.ones(3, 2, 2, 2), padding="same", stride=2),
        lambda: F.conv_transpose2d(gt.ones(1, 2, 4, 4), gt.ones(2, 3, 2, 2), output_padding=1),
        lambda: F.max_pool2d(gt.ones(4, 4), 2),
        lambda: F.layer_norm(gt.ones(2, 3), (4,)),
        lambda: F.gelu(gt.ones(2), approximate="tahn"),
        lambda: F.dropout(gt.ones(2), 1.5),
        lambda: F.embedding(gt.tensor([0]), gt.ones(2, 2), padding_idx=5),
        lambda: F.batch_norm(gt.ones(2, 2), None, None),
        lambda: F.glu(gt.ones(3)),
        lambda: F.group_norm(gt.ones(2, 3), 2),
        lambda: gt.nn.GroupNorm(2, 3),
        lambda: gt.nn.Conv2d(3, 4, 2, groups=2),
        lambda: gt.nn.BatchNorm2d(3)(gt.ones(2, 3)),
    ],
)
def test_a_wrong_argument_is_refused_on_the_users_line(call) -> None:
    with gt.testing.cluster(), pytest.raises(ValueError):
        call()


def test_a_softmax_wants_its_axis() -> None:
    with gt.testing.cluster(), pytest.raises(TypeError, match="axis|dim"):
        F.softmax(gt.ones(2))


WHOLE = ("bool", "uint8", "int8", "int16", "int32", "int64")


def _of_whole_numbers(m: Any, call: str, n: int, dtype: str) -> Any:
    """The result of a layer of whole numbers, or the type of its error."""
    run = getattr(m.nn.functional, f"{call}{n}d")
    image = (m.arange(2 * 6**n) * 7 % 23 - 11).reshape(1, 2, *[6] * n).to(getattr(m, dtype))
    weight = (m.arange(4 * 3**n) % 5 - 2).reshape(2, 2, *[3] * n).to(getattr(m, dtype))
    bias = m.arange(2).to(getattr(m, dtype))
    try:
        found = run(image, weight, bias, stride=2, padding=1) if "conv" in call else run(image, 2)
    except NotImplementedError:
        return NotImplementedError
    return str(found.dtype).split(".")[-1], found.tolist()


@pytest.mark.parametrize("engine", ["pytorch", "numpy"])
@pytest.mark.parametrize("call", ["max_pool", "avg_pool", "conv", "conv_transpose", "adaptive_max_pool", "adaptive_avg_pool"])
def test_layers_of_whole_numbers_are_pytorch_s_or_its_error(call: str, engine: str) -> None:
    with gt.testing.cluster(engine=engine):
        for n in (1, 2, 3):
            for dtype in WHOLE:
                assert _of_whole_numbers(gt, call, n, dtype) == _of_whole_numbers(torch, call, n, dtype), (n, dtype)


def test_an_average_of_whole_numbers_is_rounded_after_its_terms_are_summed() -> None:
    value = torch.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8) * 5 % 7
    with gt.testing.cluster(3):
        gt.register_config("terms", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        with gt.signal.context("terms"):
            rows = gt.tensor(value.numpy())
        found = gt.nn.functional.avg_pool2d(rows.sum(0, keepdim=True), 3)
        assert found.tolist() == torch.nn.functional.avg_pool2d(value.sum(0, keepdim=True), 3).tolist()
