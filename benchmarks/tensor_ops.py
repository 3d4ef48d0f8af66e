"""rms_norm, silu and gelu against NumPy, torch and a plain memory copy, on (128, 4096) and (4096, 4096) float32.

Both sides of a pair run alternately in one process with two threads. `ratio` is how many times as fast GT is; for the
copies it is the part of the copy's speed that GT reaches, and for OpenCL how much longer it takes than our C++.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gt.tensor_ops import calls, choice
from gt.tensor_ops.measure import alternately

SHAPES = ((128, 4096), (4096, 4096))
THREADS = 2
EPS = 1e-6


def numpy_ops(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> dict[str, tuple[Callable, Callable]]:
    """Each op as a NumPy user writes it, and as one does who saves every temporary."""
    a = np.float32(np.sqrt(2 / np.pi))

    def rms_norm() -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(EPS)) * weight

    def rms_norm_out() -> np.ndarray:
        np.multiply(x, x, out=out)
        scale = 1 / np.sqrt(np.mean(out, axis=-1, keepdims=True) + np.float32(EPS))
        np.multiply(x, scale, out=out)
        return np.multiply(out, weight, out=out)

    def silu_out() -> np.ndarray:
        np.negative(x, out=out)
        np.exp(out, out=out)
        np.add(out, np.float32(1), out=out)
        return np.divide(x, out, out=out)

    def gelu_out() -> np.ndarray:
        np.multiply(x, x, out=out)
        np.multiply(out, np.float32(0.044715) * a, out=out)
        np.add(out, a, out=out)
        np.multiply(out, x, out=out)
        np.tanh(out, out=out)
        np.add(out, np.float32(1), out=out)
        np.multiply(out, x, out=out)
        return np.multiply(out, np.float32(0.5), out=out)

    def gelu() -> np.ndarray:
        return np.float32(0.5) * x * (1 + np.tanh(a * (x + np.float32(0.044715) * x * x * x)))

    return {
        "rms_norm": (rms_norm, rms_norm_out),
        "silu": (lambda: x / (1 + np.exp(-x)), silu_out),
        "gelu": (gelu, gelu_out),
    }


def torch_ops(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> dict[str, tuple[Callable, Callable]]:
    """torch's own kernels; its rms_norm has no `out`, so both places hold the same call."""
    import torch

    torch.set_num_threads(THREADS)
    tx, tw, to = torch.from_numpy(x), torch.from_numpy(weight), torch.from_numpy(out)
    functional, aten = torch.nn.functional, torch.ops.aten

    def rms_norm() -> Any:
        return functional.rms_norm(tx, tw.shape, tw, EPS)

    return {
        "rms_norm": (rms_norm, rms_norm),
        "silu": (lambda: functional.silu(tx), lambda: aten.silu.out(tx, out=to)),
        "gelu": (
            lambda: functional.gelu(tx, approximate="tanh"),
            lambda: aten.gelu.out(tx, approximate="tanh", out=to),
        ),
    }


def gt_ops(backend: Any, x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> dict[str, tuple[Callable, Callable]]:
    return {
        "rms_norm": (
            lambda: calls.rms_norm(backend, x, weight, EPS),
            lambda: calls.rms_norm(backend, x, weight, EPS, out),
        ),
        "silu": (lambda: calls.silu(backend, x), lambda: calls.silu(backend, x, out)),
        "gelu": (lambda: calls.gelu(backend, x), lambda: calls.gelu(backend, x, "tanh", out)),
    }


def result(case: str, gt: float, rival: float, ratio: float) -> dict[str, Any]:
    return {"case": case, "gt": gt * 1e3, "rival": rival * 1e3, "unit": "ms", "ratio": ratio}


def cases() -> Iterator[dict[str, Any]]:
    """One dict a comparison: case, gt, rival, unit, ratio."""
    cpp = choice.module("cpp")
    cpp.set_threads(THREADS)
    for shape in SHAPES:
        yield from of_shape(cpp, shape)


def of_shape(cpp: Any, shape: tuple[int, int]) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, dtype=np.float32)
    weight = rng.standard_normal(shape[1], dtype=np.float32)
    # Written before it is timed, and allocated as x is: NumPy asks for huge pages in `empty` but not in `zeros`.
    out, other = np.empty_like(x), np.empty_like(x)
    out[:], other[:] = 0, 0
    rounds = 40 if x.size < 1 << 20 else 6
    ours = gt_ops(cpp, x, weight, out)
    rivals = {"numpy": numpy_ops(x, weight, other), "torch": torch_ops(x, weight, other)}
    for op, pair in ours.items():
        for name, rival in rivals.items():
            for way, mine, theirs in zip(("fresh", "out="), pair, rival[op]):
                took = alternately({"gt": mine, "rival": theirs}, rounds)
                case = f"tensor_ops_cpp {op} {shape} {way} vs {name}"
                yield result(case, took["gt"], took["rival"], took["rival"] / took["gt"])
        took = alternately({"gt": pair[1], "rival": lambda: cpp.copy(x, other)}, rounds)
        yield result(f"tensor_ops_cpp {op} {shape} out= vs copy", took["gt"], took["rival"], took["rival"] / took["gt"])
        if choice.process.reason("opencl") is None:
            opencl = gt_ops(choice.module("opencl"), x, weight, other)[op][1]
            took = alternately({"gt": opencl, "rival": pair[1]}, rounds)
            case = f"tensor_ops_opencl {op} {shape} out= vs tensor_ops_cpp (time ratio)"
            yield result(case, took["gt"], took["rival"], took["gt"] / took["rival"])


CASES = {"tensor_ops": cases}

if __name__ == "__main__":
    for row in cases():
        print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}))
