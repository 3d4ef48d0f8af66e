"""Shared by the tests of nn: the same calls in GT and in PyTorch, and their results compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import gt

ENGINES = ["numpy", "pytorch"]


def numbers(*shape: int, seed: int = 0, low: float | None = None, high: float = 1.0) -> np.ndarray:
    """Normal numbers, or, with `low`, even ones from there to `high`."""
    rng = np.random.default_rng(seed + 1000 * len(shape) + sum(shape))
    if low is None:
        return rng.standard_normal(shape).astype(np.float32)
    return rng.uniform(low, high, shape).astype(np.float32)


def to_gt(value: Any, wants: bool = False) -> Any:
    if isinstance(value, np.ndarray):
        return gt.tensor(value, requires_grad=wants and value.dtype.kind == "f")
    return value


def to_torch(value: Any, wants: bool = False) -> Any:
    if isinstance(value, np.ndarray):
        made = torch.from_numpy(value.copy())
        return made.requires_grad_() if wants and value.dtype.kind == "f" else made
    return value


def close(found: Any, wanted: Any, name: str = "", rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """The same value, shape and dtype."""
    if wanted is None:
        assert found is None, f"{name}: {found} where PyTorch has None"
        return
    assert found is not None, f"{name}: None where PyTorch has a tensor"
    assert tuple(found.shape) == tuple(wanted.shape), name
    assert found.dtype.name == str(wanted.dtype).removeprefix("torch."), name
    np.testing.assert_allclose(found.numpy(), wanted.detach().float().numpy() if wanted.dtype is torch.bfloat16
                               else wanted.detach().numpy(), rtol=rtol, atol=atol, err_msg=name)  # fmt: skip


def flat(result: Any) -> list:
    if isinstance(result, (tuple, list)):
        return [leaf for r in result if r is not None for leaf in flat(r)]
    return [result]


def random_state(module: torch.nn.Module, seed: int = 1) -> dict[str, torch.Tensor]:
    """A state with no two numbers alike, so that no part of it can pass for another."""
    torch.manual_seed(seed)
    for name, value in module.state_dict().items():
        if value.dtype.is_floating_point:
            value.copy_(torch.rand(value.shape) * 0.8 + 0.1 if "var" in name else torch.randn(value.shape) * 0.5)
    return module.state_dict()


def compare_modules(own: Any, theirs: torch.nn.Module, inputs: tuple, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Forward, gradients of inputs and parameters, and the state afterwards (running means and the like)."""
    own.load_state_dict(random_state(theirs))
    assert list(own.state_dict()) == list(theirs.state_dict())
    a, b = [to_gt(x, True) for x in inputs], [to_torch(x, True) for x in inputs]
    found, wanted = flat(own(*a)), flat(theirs(*b))
    assert len(found) == len(wanted)
    for i, (y, z) in enumerate(zip(found, wanted)):
        close(y, z, f"output {i}", rtol, atol)
    seeds = [numbers(*z.shape, seed=7) for z in wanted]
    pairs = [(y, z, s) for y, z, s in zip(found, wanted, seeds) if z.requires_grad]
    if pairs:
        sum((y * to_gt(s)).sum() for y, _, s in pairs).backward()
        sum((z * to_torch(s)).sum() for _, z, s in pairs).backward()
    for i, (x, y) in enumerate(zip(a, b)):
        if isinstance(y, torch.Tensor) and y.requires_grad:
            close(x.grad, y.grad, f"gradient of input {i}", rtol * 5, atol * 5)
    for (name, p), (_, q) in zip(own.named_parameters(), theirs.named_parameters()):
        close(p.grad, q.grad, f"gradient of {name}", rtol * 5, atol * 5)
    for name, value in theirs.state_dict().items():
        close(own.state_dict()[name], value, name, rtol, atol)
