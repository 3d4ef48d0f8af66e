"""PyTorch's own samples of every module that GT has: outputs, gradients of parameters and of inputs, in training and not.

The samples are those by which PyTorch tests its modules (`common_modules.module_db`)."""

from __future__ import annotations

import inspect
import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import gt

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    common = pytest.importorskip("torch.testing._internal.common_modules", reason="PyTorch's test modules are not installed")

# Why a module's samples are not compared. A module may leave this list, none may come in.
EXCEPTIONS = {
    "nn.TransformerEncoder": "takes a layer, and PyTorch's samples bring PyTorch's: compared in tests/nn/test_attention.py",
}
MISSING = {"nn.LinearCrossEntropyLoss"}  # new in PyTorch 2.13: a Linear and cross_entropy in one; may only shrink
INFOS = {info.name: info for info in common.module_db}


def _own(module: Any) -> Any:
    """The class of GT by the same name, if there is one."""
    return getattr(gt.nn, module.__name__, None) if module.__module__.startswith("torch.nn.modules") else None


NAMES = sorted(name for name, info in INFOS.items() if _own(info.module_cls) is not None)


def converted(value: Any, leaves: list) -> Any:
    """Tensors as GT's; tensors that require gradients are noted in pairs."""
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        raise Unfit("packed sequences are compared in tests/nn/test_sequences.py")
    if isinstance(value, torch.Tensor):
        own = gt.from_torch(value.detach())
        if value.requires_grad:
            leaf = value if value.is_leaf else value.detach().requires_grad_()
            leaves.append((own.requires_grad_(), leaf))
        return own
    if isinstance(value, (list, tuple)):
        return type(value)(converted(v, leaves) for v in value)
    if isinstance(value, dict):
        return {k: converted(v, leaves) for k, v in value.items()}
    if isinstance(value, torch.dtype):
        return getattr(gt, str(value).removeprefix("torch."))
    if isinstance(value, torch.nn.Module):
        raise Unfit(f"a {type(value).__name__} of PyTorch's inside")
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        name = getattr(value, "__name__", "")
        other = getattr(gt, name, None) or getattr(gt.nn.functional, name, None)
        return other if other is not None and name != "<lambda>" else value
    return value


class Unfit(Exception):
    """A sample that GT's module cannot be given."""


def tensors(value: Any) -> list:
    if isinstance(value, (gt.Tensor, torch.Tensor)):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for v in parts for t in tensors(v)]


def same(own: Any, theirs: Any, what: str) -> None:
    a, b = tensors(own), tensors(theirs)
    assert len(a) == len(b), f"{what}: {len(a)} results, not {len(b)}"
    for x, y in zip(a, b):
        assert x.shape == y.shape, f"{what}: shape {x.shape}, not {tuple(y.shape)}"
        np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol=1e-8, atol=1e-8, equal_nan=True, err_msg=what)


def weigh(results: list) -> Any:
    """A sum in which every element counts differently."""
    return sum((t * t).sum() * (i + 1) + t.sum() for i, t in enumerate(results))


def compare(info: Any, sample: Any, training: bool, what: str) -> None:
    leaves: list = []
    args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
    theirs = info.module_cls(*args, **kwargs).double()
    given = {k: v for k, v in converted(kwargs, []).items() if k not in ("device", "dtype")}
    own = _own(info.module_cls)(*converted(args, []), **given)
    call = sample.forward_input
    if "Lazy" in info.name:  # which have a state only after a first call
        own(*(t.float() for t in converted(call.args, []))), theirs(*call.args)
    own = own.double()
    own.load_state_dict(theirs.state_dict())
    own.train(training), theirs.train(training)
    if call is None:
        return
    given = converted(call.args, leaves), converted(call.kwargs, leaves)
    a, b = own(*given[0], **given[1]), theirs(*call.args, **call.kwargs)
    same(a, b, what)
    mine = [t for t in tensors(a) if t.requires_grad]
    yours = [t for t in tensors(b) if t.requires_grad]
    assert len(mine) == len(yours), f"{what}: gradients of {len(mine)} results, not {len(yours)}"
    if not yours:
        return
    weigh(mine).backward()
    weigh(yours).backward()
    parameters = dict(own.named_parameters())
    for name, p in theirs.named_parameters():
        if p.grad is not None:
            same(parameters[name].grad, p.grad, f"{what}: gradient of {name}")
    for x, y in leaves:
        if y.grad is not None:
            same(x.grad, y.grad, f"{what}: gradient of an input")
    for key, value in theirs.state_dict().items():
        same(own.state_dict()[key], value, f"{what}: {key} afterwards")


def compare_samples(name: str, most: int | None) -> None:
    """The first samples of a module, or all of them."""
    info, compared = INFOS[name], 0
    with gt.testing.cluster(1, "pytorch"):
        for training in (True, False):
            torch.manual_seed(0)
            samples = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)
            for i, sample in enumerate(islice(samples, most)):
                try:
                    compare(info, sample, training, f"{name} sample {i} ({sample.desc})")
                except Unfit:
                    continue
                compared += 1
    assert bool(compared) != (name in EXCEPTIONS), f"{compared} samples of {name} were compared"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_first_samples_of_a_module(name: str) -> None:
    compare_samples(name, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_all_samples_of_a_module(name: str) -> None:
    compare_samples(name, None)


def test_every_module_of_pytorchs_is_here() -> None:
    missing = [n for n, info in INFOS.items() if info.module_cls.__module__.startswith("torch.nn.modules") and n not in NAMES]
    assert len(NAMES) >= 100 and set(missing) <= MISSING, missing
