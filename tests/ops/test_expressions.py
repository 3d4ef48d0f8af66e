"""Corners of dtypes, sizes, NumPy's functions and Python's protocols: each expression is evaluated in PyTorch and in GT, on
both engines, and has to give the same values, dtypes and shapes, or an error of the same type."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.spec import DType, dtype_of

pytestmark = pytest.mark.filterwarnings("ignore")
# Floats, integers, bytes, booleans, a number, no elements, nan.
DATA = {
    "x": ([[0.5, -1.5, 2.0], [1.0, 0.0, -3.0]], "float32"),
    "w": ([0.5, -1.0, 2.0], "float64"),
    "i": ([1, -2, 3], "int64"),
    "u": ([1, 0, 3], "uint8"),
    "b": ([True, False, True], "bool"),
    "z": (2.0, "float32"),
    "e": (np.zeros((0, 3)), "float32"),
    "v": ([3.0, np.nan, 1.0, np.nan], "float32"),
    "image": (np.arange(70).reshape(1, 2, 5, 7) * 3 % 256, "uint8"),
}
LINES = """
x[1.5]; x["a"]; x[{}]; x[None, 1.0]; x[[0, 1], [0, 1, 2]]; x[i[:2] * 0, i * 0]; put(x, ([0, 1], [0, 1, 2]), 0.0)
put(x, 1.5, 0.0)
F.one_hot(i); F.one_hot(t.tensor([2, 5]), 3); F.one_hot(t.tensor([2, 1]), 3); F.one_hot(t.tensor([2, 0]))
t.normal(0.0, -1.0, (2,))
t.meshgrid(x, x); t.meshgrid(i, w); t.meshgrid(z, x[0]); t.meshgrid(i, i)
t.hypot(i, i); t.hypot(x, x); t.hypot(x * 1e30, x * 1e30); t.hypot(x.half() * 300, x.half() * 300); t.hypot(z, w)
t.hypot(x * 0, x * 0)
gradient(lambda x: t.hypot(x, x * 2 + 1)); t.xlogy(2, x + 4); t.xlogy(z.double(), i + 5); t.xlogy(w, (z + 1).bfloat16())
t.xlogy(x, 1j)
t.ldexp(x.bfloat16(), i); t.ldexp(z.double(), i); t.ldexp(x, i); t.ldexp(x.half(), i + 9); t.ldexp(i, i)
t.result_type(x, 1j); t.result_type(i, 1j); t.result_type(w, 1j); t.result_type(i, 2.5); t.result_type(u, 300)
t.searchsorted(i.sort()[0], 1.5); t.bucketize(2.5, i.sort()[0]); t.searchsorted(w.sort()[0], 1)
t.bucketize(1, x[0].sort()[0])
x.index_put((i[:1] - 1,), w); x.index_put((i[:1] - 1,), w.float()); x.index_put((i[:1] - 1,), 2.0); t.isclose(w, x[0])
t.allclose(x, x)
x @ 2.0; t.dot(b, b); t.mm(b[None], b[:, None]); t.matmul(x, 3); i[:2] @ i[:2]
t.tensor([1, [2]]); t.tensor([[1], 2]); t.tensor([[1, 2], [3]]); t.tensor([1.0, (2, 3)]); t.tensor(["a"])
t.tensor([1, "a"])
t.tensor([i[:1], i[1:2]]); t.tensor([i, i]); t.tensor([x, x]); t.tensor([[z, 1], [2, 3]]); t.tensor([z.bfloat16()])
t.tensor([b[0], False]); t.tensor([u[0], 2]); t.tensor([z, 1j]); t.tensor([2**63]); t.tensor([2**70])
t.tensor(np.array([2**63], np.uint64), dtype=t.float32); t.nn.MultiheadAttention(5, 2); t.nn.MultiheadAttention(4, 0)
2.5 - u; 2 - u; 1j - u; 2.5 - t.tensor([-128], dtype=t.int8); True - x; 2.5 - x; np.float64(2.5) - u; 1 - i
x[u[:2]]; x[t.tensor([1, 0], dtype=t.uint8)]; x[[[0, 1], [1, 2]]]; x[[0, 1]]; x[[[0, 1]]]; x[[0, 1], [1, 2]]
put(x, t.tensor([1, 0], dtype=t.uint8), 7.0); put(x, u.expand(2, 3), 7.0); put(x, u.expand(2, 3), x[:, :2].reshape(-1))
put(x, [[0, 1], [1, 2]], 7.0); put(x, 0, 1 + 1j)
v.unique(); v.unique(return_inverse=True, return_counts=True); t.histc(v, 3, 0, 4); t.histc(e); v.median(); e.median()
np.exp(x); np.sqrt(z); np.maximum(x, 0); np.isnan(x); np.add(x, x); np.argmax(x); np.transpose(x); np.sum(x); np.asarray(x)
np.exp(w.requires_grad_()); np.multiply(w.requires_grad_(), 2.0); np.float64(2) * w.requires_grad_()
t.utils.data.default_collate([1, 2.5]); t.utils.data.default_collate([1.5, 2]); t.utils.data.default_collate([True, False])
t.utils.data.default_collate([np.float32(1), np.float32(2)]); t.utils.data.default_collate([1, 2])
i.add(1, alpha=2.5); i.add(1, alpha=2); t.index_fill(x, 1, i[:1].int(), 1.0)
t.index_add(z, 0, t.tensor([0]), w[:1].float())
e.chunk(2); x.chunk(2); z.chunk(1); z.split(1); t.stack([]); t.cat([t.tensor([]), x]); t.cat([t.tensor([]), i[None]])
t.cat([t.empty(0)] * 2, 1)
t.cat([x, t.empty(0)], 1); e.max(0); e.argmax(0); z.mT; t.nn.functional.normalize(z, dim=0); x.half() @ x.half().t()
t.einsum(x, [0, 1], x, [2, 1], [0, 2]); t.einsum(x, [0, 1], x, [2, 1]); t.einsum("ij,kj->ik", [x, x]); t.einsum("i1", x)
t.einsum(x, [..., 1], [1, ...])
i & x; i << 1.5; b // b; b ** b; b % True; x.bincount(); x.index_select(0, t.tensor([[0]])); x[t.tensor([5])]; x & x
x.repeat_interleave(t.tensor([1, 2, 3]), 0); t.rand(2, dtype=t.int64); t.nn.LSTM(3, 2)(t.ones(2, 2, 9))
t.full((1,), 300, dtype=t.uint8); t.full((1,), -3, dtype=t.uint8); t.full((1,), 2**40, dtype=t.int32)
i // t.tensor([1, 0, 1]); i % 0; t.fmod(i, 0); i // 0
t.div(i, 0, rounding_mode="floor"); i.float() // 0; t.pow(t.tensor(2), i); t.pow(i, t.tensor([-1, 2, -3])); i ** -1
-7 // u[:1]
t.empty(1, 2, 3, 4, memory_format=t.channels_last).shape; x.clone(memory_format=t.preserve_format)
t.nn.Conv2d(1, 1, 1).to(memory_format=t.channels_last).weight.shape; t.hann_window(5, device="cpu", layout=t.strided)
t.bartlett_window(5, device="cpu"); t.kaiser_window(5, device="cpu")
F.interpolate(image, (8, 9), mode="bilinear"); F.interpolate(image, (3, 4), mode="bilinear", align_corners=True)
F.interpolate(image, (8, 9), mode="bicubic"); F.interpolate(image, scale_factor=1.7, mode="bicubic")
F.interpolate(image, scale_factor=(0.6, 2.3), mode="bilinear"); F.interpolate(image.int(), (8, 9), mode="bilinear")
F.interpolate(image[:, :, 0], 5, mode="linear"); F.interpolate(x, 2); F.interpolate(image, (3, 3), mode="nearest")
copied(x, copy.copy); copied(x, copy.deepcopy); copied(t.nn.Parameter(x), copy.copy); pickled(x); pickled(t.nn.Parameter(x))
pickled(x.bfloat16()); pickled(t.nn.Linear(2, 2)).weight.shape; pickled(w.requires_grad_() * 2).is_leaf
gradient(lambda x: (x * 1).fill_(3.0)); gradient(lambda x: (x * 1).zero_()); gradient(lambda x: (x * 1).fill_(x.sum()))
gradient(lambda x: (x * 1)[0].zero_()); gradient(lambda x: x[:0].prod(0)); gradient(lambda x: x[:0].prod())
t.func.grad(lambda x: ((x * x).sum(), x * 2), has_aux=True)(x); stream(t.Generator())
""".replace("\n", ";")  # fmt: skip


def put(x: Any, index: Any, value: Any) -> Any:
    y = x.clone()
    y[index] = value
    return y


def copied(x: Any, how: Any) -> Any:
    y = how(x)
    with torch.no_grad(), gt.no_grad():
        y[0] = 9
    return x, y, type(y).__name__


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


def stream(generator: Any) -> Any:
    """Whether a generator goes on from a state."""
    t = torch if isinstance(generator, torch.Generator) else gt
    state = generator.manual_seed(3).get_state()
    first = t.rand(3, generator=generator)
    other = generator.clone_state()
    again = t.rand(3, generator=generator.set_state(state))
    ahead = t.equal(t.rand(3, generator=other), t.rand(3, generator=generator))
    return bool(t.equal(first, again)), bool(ahead)


def evaluate(line: str, t: Any) -> Any:
    names = {}
    for name, (values, dtype) in DATA.items():
        array = np.asarray(values)
        names[name] = t.tensor(array).to(getattr(t, dtype)) if t is torch else gt.tensor(array, dtype=dtype_of(dtype))

    def gradient(f: Any) -> Any:
        x = names["x"].requires_grad_()
        y = f(x)
        (y * y).sum().backward()
        return y, x.grad

    code = compile(line, "<expression>", "eval")
    own = dict(t=t, F=t.nn.functional, np=np, copy=copy, put=put, copied=copied, pickled=pickled, stream=stream)
    try:
        return plain(eval(code, {**own, **names, "gradient": gradient}))
    except Exception as wrong:  # noqa: BLE001 - compared with the error of the other library
        return wrong


def plain(value: Any) -> Any:
    """Numbers, dtypes and shapes, which compare."""
    if isinstance(value, (torch.Tensor, gt.Tensor)):
        d = value.detach()
        array = d.float().numpy() if str(d.dtype).endswith("bfloat16") else d.numpy()
        return str(d.dtype).split(".")[1], tuple(d.shape), bool(value.requires_grad), np.array(array)
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return str(value).split(".")[1] if isinstance(value, (torch.dtype, DType)) else value


def same(found: Any, want: Any) -> None:
    if isinstance(want, BaseException):
        assert isinstance(found, BaseException), f"{found}, PyTorch: {type(want).__name__}: {want}"
        assert isinstance(found, type(want)), f"{type(found).__name__}: {found}, PyTorch: {type(want).__name__}: {want}"
    elif isinstance(found, BaseException):
        raise found
    elif isinstance(want, np.ndarray):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    elif isinstance(want, (list, tuple)):
        assert isinstance(found, (list, tuple)) and len(found) == len(want), f"{found}, PyTorch: {want}"
        for a, b in zip(found, want):
            same(a, b)
    else:
        assert found == want


@pytest.fixture(scope="module", params=["pytorch", "numpy"])
def engine(request):
    with gt.testing.cluster(1, request.param):
        yield request.param


@pytest.mark.parametrize("line", [line.strip() for line in LINES.split(";") if line.strip()])
def test_an_expression_gives_what_it_gives_in_pytorch(line: str, engine: str) -> None:
    with torch.enable_grad():
        want = evaluate(line, torch)
    same(evaluate(line, gt), want)
