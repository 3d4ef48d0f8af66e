"""Tensors in files: safetensors, so that nothing read from a file is ever run.

A dict of tensors becomes a file that any reader of the format understands. What else is saved (nested dicts, lists, numbers,
such as an optimizer's state) is written beside them, in the file's metadata."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.creation import loaded
from gt.client.functions.reading import to_bfloat16_bits
from gt.spec import DType, bfloat16, dtype_of

NAMES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
         "bfloat16": "BF16", "float32": "F32", "float64": "F64"}  # fmt: skip
DTYPES = {code: dtype_of(name) for name, code in NAMES.items()}
LONGEST_HEADER = 100_000_000  # the format's own limit
Path = str | os.PathLike


def save(obj: Any, f: Path | BinaryIO, metadata: dict[str, str] | None = None) -> None:
    """Write a tensor, a state dict, or dicts and lists of tensors, numbers, strings and None.

    >>> gt.save({"w": gt.ones(2)}, "model.safetensors")
    >>> gt.load("model.safetensors")["w"]
    tensor([1., 1.])
    """
    tensors: dict[str, Tensor] = {}
    if isinstance(obj, dict) and all(isinstance(k, str) and _is_tensor(v) for k, v in obj.items()):
        tensors, told = {k: _own(v) for k, v in obj.items()}, dict(metadata or {})
    else:
        shape = _described(obj, "", tensors)
        told = {**(metadata or {}), "gt": json.dumps(shape)}
    if hasattr(f, "write"):
        _write(f, tensors, told)  # type: ignore[arg-type]
        return
    part = f"{os.fspath(f)}.part"
    try:
        with open(part, "wb") as file:
            _write(file, tensors, told)
        os.replace(part, f)  # a reader finds the old file or the new one, never half of it
    finally:
        if os.path.exists(part):
            os.remove(part)


def load(f: Path | BinaryIO) -> Any:
    """What `save` wrote; of a file that others wrote, its tensors by name."""
    if hasattr(f, "read"):
        data = np.frombuffer(f.read(), np.uint8)
    elif os.path.getsize(f):
        data = np.memmap(f, np.uint8, "r")
    else:
        data = np.empty(0, np.uint8)
    header, body = _header(data)
    told = header.pop("__metadata__", {})
    tensors = dict(_tensors(header, body))
    return _rebuilt(json.loads(told["gt"]), tensors) if "gt" in told else tensors


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) or type(value).__module__.split(".")[0] == "torch"


def _own(value: Any) -> Tensor:
    from gt.client.functions.creation import tensor

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
    raise TypeError(
        f"cannot save {type(value).__name__} at {path or 'the top'}: want tensors, numbers, strings, dicts and lists"
    )


def _key(key: Any) -> Any:
    if not isinstance(key, (str, int)) or isinstance(key, bool):
        raise TypeError(f"cannot save a dict with the key {key!r}: want strings and whole numbers")
    return key


def _rebuilt(told: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, value),) = told.items()
    match kind:
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
    raise ValueError(f"no {kind!r} can be read: this file was written by a later version")


def _write(file: BinaryIO, tensors: dict[str, Tensor], told: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": told} if told else {}
    at = 0
    for name, t in tensors.items():
        spec = t.data.spec
        header[name] = {"dtype": NAMES[spec.dtype.name], "shape": list(spec.shape), "data_offsets": [at, at + spec.nbytes]}
        at += spec.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for t in tensors.values():  # one at a time: a model need not fit into this process twice
        array = t.data.numpy()
        file.write(np.ascontiguousarray(to_bfloat16_bits(array) if t.data.spec.dtype is bfloat16 else array).tobytes())


def _header(data: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """The header, checked, and the bytes behind it."""
    if len(data) < 8:
        raise ValueError("this is no safetensors file: it is too short")
    n = int.from_bytes(data[:8].tobytes(), "little")
    if n > min(LONGEST_HEADER, len(data) - 8):
        raise ValueError(f"this is no safetensors file: a header of {n} bytes in {len(data)}")
    try:
        header = json.loads(data[8 : 8 + n].tobytes())
    except ValueError:
        raise ValueError("this is no safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("this is no safetensors file: its header is no dict")
    return header, data[8 + n :]


def _tensors(header: dict[str, Any], body: np.ndarray) -> Iterator[tuple[str, Tensor]]:
    for name, about in header.items():
        try:
            dtype, shape, (start, end) = DTYPES[about["dtype"]], tuple(about["shape"]), about["data_offsets"]
            size = math.prod(shape) * dtype.size
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"cannot read {name!r}: its entry is {about}") from None
        if not 0 <= start <= end <= len(body) or end - start != size or any(d < 0 for d in shape):
            raise ValueError(
                f"cannot read {name!r}: {shape} of {dtype.name} is {size} bytes, not {start} to {end} of {len(body)}"
            )
        yield name, loaded(body[start:end], shape, dtype)
