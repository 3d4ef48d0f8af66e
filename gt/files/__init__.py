"""Tensors in files: safetensors, so that nothing read from a file is ever run. The format is left to its own library, which
many use and which checks each file; it is loaded on first use.

A dict of tensors becomes a file that any reader of the format understands. All other data (nested dicts, lists, numbers,
such as an optimizer's state) is written to the file's metadata."""

from __future__ import annotations

import json
import math
import os
import tempfile
import warnings
from typing import Any, BinaryIO

import numpy as np

from gt.client.arrays import loaded, to_bfloat16_bits
from gt.client.autograd import Tensor
from gt.client.functions.create import tensor
from gt.files import torch_zip
from gt.spec import DType, bfloat16, dtype_of

NAMES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
         "bfloat16": "BF16", "float32": "F32", "float64": "F64"}  # fmt: skip
DTYPES = {code: dtype_of(name) for name, code in NAMES.items()}
Path = str | os.PathLike
ORDER = "gt_order"  # in a file's metadata, the names of its tensors in the order of the state dict


def save(obj: Any, f: Path | BinaryIO, metadata: dict[str, str] | None = None) -> None:
    """Write a tensor, a state dict, or dicts and lists of tensors, numbers, strings and None.

    >>> gt.save({"w": gt.ones(2)}, "model.safetensors")
    >>> gt.load("model.safetensors")["w"]
    tensor([1., 1.])
    """
    tensors: dict[str, Tensor] = {}
    if isinstance(obj, dict) and all(isinstance(k, str) and _is_tensor(v) for k, v in obj.items()):
        tensors = {k: _own(v) for k, v in obj.items()}
        told = {**(metadata or {}), ORDER: json.dumps(list(tensors))}
    else:
        shape = _described(obj, "", tensors)
        told = {**(metadata or {}), "gt": json.dumps(shape)}
    write = _library().numpy
    arrays = {name: _array(t) for name, t in tensors.items()}
    if hasattr(f, "write"):
        f.write(write.save(arrays, told or None))
        return
    part = f"{os.fspath(f)}.part"
    try:
        write.save_file(arrays, part, told or None)
        os.replace(part, f)  # a reader finds the old file or the new one, never half of it
    finally:
        if os.path.exists(part):
            os.remove(part)


def load(
    f: Path | BinaryIO, map_location: Any = None, pickle_module: Any = None, *, weights_only: bool | None = None,
    mmap: bool | None = None,
) -> Any:  # fmt: skip
    """The data that `save` wrote; of another safetensors file, its tensors by name; of a checkpoint of `torch.save`, its
    tensors in their dicts and lists. Nothing in a file is run, so there is no `weights_only=False`; where tensors lie is the
    dispatcher's business, so `map_location` is taken and decides nothing."""
    if weights_only is False:
        warnings.warn(
            "gt.load never runs code from a file: weights_only=False reads the same as weights_only=True", stacklevel=2
        )
    if _is_zip(f):
        return torch_zip.read(f if hasattr(f, "read") else os.fspath(f))
    if hasattr(f, "read"):
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(f.read())
            file.flush()
            tensors, told = _tensors(file.name)
    else:
        tensors, told = _tensors(os.fspath(f))
    return _rebuilt(json.loads(told["gt"]), tensors) if "gt" in told else _in_order(tensors, told)


def _in_order(tensors: dict[str, Tensor], told: dict[str, str]) -> dict[str, Tensor]:
    """The tensors in the order in which they were saved: a safetensors file has them by dtype and name."""
    names = json.loads(told.get(ORDER, "[]"))
    return {name: tensors[name] for name in names} if tensors.keys() == set(names) else tensors


def _is_zip(f: Any) -> bool:
    """Whether this is a checkpoint of PyTorch's, by its first bytes."""
    if hasattr(f, "read"):
        start = f.read(4)
        f.seek(-len(start), 1)
        return start == b"PK\x03\x04"
    with open(f, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) or type(value).__module__.split(".")[0] == "torch"


def _own(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else tensor(value)


def _described(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A value in JSON, its tensors left out by name. Dicts are lists of pairs, as JSON's keys are only strings."""
    if _is_tensor(value):
        tensors[path or "tensor"] = _own(value)
        return {"tensor": path or "tensor"}
    if isinstance(value, dict):
        return {"dict": [[_key(k), _described(v, f"{path}.{k}" if path else str(k), tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_described(v, f"{path}.{i}" if path else str(i), tensors) for i, v in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, (bool, int, str)):
        return {"value": value}
    if isinstance(value, float):
        return {"value": value} if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    state = " (save its state_dict())" if callable(getattr(value, "state_dict", None)) else ""
    raise TypeError(
        f"cannot save {type(value).__name__} at {path or 'the top'}{state}: expected tensors, numbers, strings, dicts and lists"
    )


def _key(key: Any) -> Any:
    if not isinstance(key, (str, int)) or isinstance(key, bool):
        raise TypeError(f"cannot save a dict with the key {key!r}: expected strings and whole numbers")
    return key


def _rebuilt(told: Any, tensors: dict[str, Tensor]) -> Any:
    ((tag, value),) = told.items()
    match tag:
        case "tensor":
            return tensors[value]
        case "dict":
            return {k: _rebuilt(v, tensors) for k, v in value}
        case "list":
            return [_rebuilt(v, tensors) for v in value]
        case "tuple":
            return tuple(_rebuilt(v, tensors) for v in value)
        case "float":
            return float(value)
        case "dtype":
            return dtype_of(value)
        case "value":
            return value
    raise ValueError(f"no {tag!r} can be read: this file was written by a later version")


def _library() -> Any:
    """The safetensors package, and bfloat16 as a dtype that NumPy knows."""
    try:
        import ml_dtypes  # noqa: F401
        import safetensors.numpy
    except ImportError as missing:
        raise ImportError(f"gt.save and gt.load need the package {missing.name}: pip install safetensors ml_dtypes") from None
    return safetensors


def _array(t: Tensor) -> np.ndarray:
    """A tensor's value, read, in its own dtype."""
    array = t.handle.numpy()
    if t.handle.spec.dtype is bfloat16:
        array = to_bfloat16_bits(array).view("bfloat16")
    return np.ascontiguousarray(array).reshape(t.handle.spec.shape)


def _tensors(path: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, one read after another, and the metadata."""
    library, found = _library(), {}
    try:
        with library.safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118
                about = file.get_slice(name)
                dtype, shape = DTYPES.get(about.get_dtype()), tuple(about.get_shape())
                if dtype is None:
                    raise ValueError(f"cannot read {name!r}: GT has no dtype {about.get_dtype()}, only {', '.join(DTYPES)}")
                data = np.ascontiguousarray(file.get_tensor(name)).reshape(-1).view(np.uint8)
                found[name] = loaded(data, shape, dtype)
            return found, file.metadata() or {}
    except library.SafetensorError as wrong:
        with open(path, "rb") as file:
            pickled = file.read(2) == b"\x80\x02"
        if pickled:
            raise ValueError("this is a pickle (torch.save's form before PyTorch 1.6, or another program's): read it with "
                             "PyTorch and save its state dict again") from None  # fmt: skip
        raise ValueError(f"this is no safetensors file, nor a checkpoint of torch.save: {wrong}") from None
