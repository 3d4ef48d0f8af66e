"""A model's weights as NumPy arrays, from safetensors files and from state dicts of torch, gt or NumPy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def as_float32(tensor: Any) -> np.ndarray:
    """A contiguous float32 copy or view of a torch, gt or NumPy tensor."""
    if isinstance(tensor, np.ndarray):
        array = tensor
    elif type(tensor).__module__.startswith("torch"):
        array = tensor.detach().float().cpu().numpy()
    elif type(tensor).__module__.startswith("gt."):
        array = np.asarray(tensor.detach().float().numpy())
    else:
        array = np.asarray(tensor)
    if array.dtype.kind not in "fV" and array.dtype.name != "bfloat16":
        raise TypeError(f"a weight: expected floating-point numbers, got {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.float32)


def kept_or_float32(tensor: Any) -> Any:
    """A torch tensor of floats on a device stays there; all others become NumPy arrays."""
    if type(tensor).__module__.startswith("torch") and tensor.device.type != "cpu" and tensor.dtype.is_floating_point:
        return tensor.detach()
    return as_float32(tensor)


def side_by_side(tensors: list[Any]) -> Any:
    """The rows of several weights as one."""
    if isinstance(tensors[0], np.ndarray):
        return np.concatenate(tensors)
    import torch

    return torch.cat(tensors)


def read_weights(source: Any) -> dict[str, Any]:
    """Name to tensor, from a state dict, a safetensors file, several of them, or a folder with some."""
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"no *.safetensors file in {path}")
    elif isinstance(source, (list, tuple)):
        files = [Path(file) for file in source]
    else:
        raise TypeError(f"weights: expected a state dict or safetensors files, got {type(source).__name__}")
    found: dict[str, Any] = {}
    for file in files:
        tensors = _read_file(file)
        if twice := found.keys() & tensors.keys():
            raise ValueError(f"{file} has {sorted(twice)[0]!r}, which an earlier file has too")
        found |= tensors
    return found


def _read_file(path: Path) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401 (registers NumPy's bfloat16, which safetensors asks for)
    from safetensors.numpy import load_file

    return load_file(path)
