"""Every kind of input: the right answer, or the same clear error on every backend."""

import numpy as np
import pytest
import tensor_ops_oracle as oracle

from gt.tensor_ops import calls


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((6, 37)).astype(np.float32)


def right(got, x):
    np.testing.assert_allclose(got, oracle.silu(x), rtol=1e-5, atol=1e-30)


LAYOUTS = {
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1::3],
    "reversed": lambda x: x[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[0], (4, 37)),
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32),
    "single": lambda x: x[0, :1],
    "no axis": lambda x: np.array(0.5, np.float32),
    "empty": lambda x: x[:0],
    "empty inside": lambda x: np.zeros((3, 0, 5), np.float32),
    "five axes": lambda x: x[:, :36].reshape(2, 3, 2, 3, 6).transpose(4, 0, 2, 1, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_right_answer(backend, x, layout):
    view = LAYOUTS[layout](x)
    before = view.copy()
    got = calls.silu(backend, view)
    assert got.shape == view.shape and got.dtype == np.float32
    right(got, view)
    assert np.array_equal(view, before)
    if view.ndim:
        weight = np.linspace(1, 2, view.shape[-1], dtype=np.float32)
        normed = calls.rms_norm(backend, view, weight)
        np.testing.assert_allclose(normed, oracle.rms_norm(view, weight, 1e-6), rtol=1e-5)


def test_a_column_major_array_keeps_its_layout(backend, x):
    assert calls.silu(backend, x.T).flags.f_contiguous


@pytest.mark.parametrize("make", [np.empty_like, lambda x: np.empty(x.shape[::-1], x.dtype).T])
def test_out_is_written_and_returned(backend, x, make):
    out = make(x)
    assert calls.silu(backend, x, out) is out
    right(out, x)
    weight = np.ones(37, np.float32)
    assert calls.rms_norm(backend, x, weight, 1e-6, out) is out
    np.testing.assert_allclose(out, oracle.rms_norm(x, weight, 1e-6), rtol=1e-5)


def test_out_may_be_the_input(backend, x):
    before = x.copy()
    calls.gelu(backend, x, "tanh", x)
    np.testing.assert_allclose(x, oracle.gelu_tanh(before), rtol=1e-5, atol=1e-7)
    before = x.copy()
    calls.rms_norm(backend, x, np.ones(37, np.float32), 1e-6, x)
    np.testing.assert_allclose(x, oracle.rms_norm(before, 1, 1e-6), rtol=1e-5)


def test_out_may_overlap_the_input_in_any_way(backend):
    memory = np.linspace(-3, 3, 5000, dtype=np.float32)
    want = oracle.silu(memory[:-1])
    calls.silu(backend, memory[:-1], memory[1:])
    np.testing.assert_allclose(memory[1:], want, rtol=1e-5)
    memory = np.linspace(-3, 3, 5000, dtype=np.float32)
    want = oracle.silu(memory)
    calls.silu(backend, memory, memory[::-1])
    np.testing.assert_allclose(memory[::-1], want, rtol=1e-5)


def test_out_may_overlap_the_weight(backend, x):
    memory = np.concatenate([x.reshape(-1), np.linspace(1, 2, 37, dtype=np.float32)])
    out, weight = memory[37:].reshape(6, 37), memory[-37:]
    want = oracle.rms_norm(x, weight.copy(), 1e-6)
    calls.rms_norm(backend, x, weight, 1e-6, out)
    np.testing.assert_allclose(out, want, rtol=1e-5)


BAD = {
    "integers": (lambda b, x: calls.silu(b, x.astype(np.int32)), TypeError, "silu's x must be float16"),
    "complex": (lambda b, x: calls.gelu(b, x.astype(np.complex64)), TypeError, "got complex64"),
    "big-endian": (lambda b, x: calls.gelu(b, x.astype(">f4")), TypeError, "got >f4"),
    "objects": (lambda b, x: calls.silu(b, x.astype(object)), TypeError, "got object"),
    "a list": (lambda b, x: calls.silu(b, [1.0]), TypeError, "got list"),
    "a masked array": (lambda b, x: calls.silu(b, np.ma.masked_less(x, 0)), TypeError, "mask would be lost"),
    "a bad form": (lambda b, x: calls.gelu(b, x, "erf"), ValueError, "'tanh' or 'none', got 'erf'"),
    "out's shape": (lambda b, x: calls.silu(b, x, x[1:]), ValueError, r"out must be float32 \(6, 37\)"),
    "out's dtype": (lambda b, x: calls.silu(b, x, x.astype("f8")), ValueError, "got float64"),
    "a read-only out": (lambda b, x: calls.silu(b, x, np.broadcast_to(x, x.shape)), ValueError, "read-only"),
    "a short weight": (lambda b, x: calls.rms_norm(b, x, x[0, :5]), ValueError, r"expected a weight \(37,\), got \(5,\)"),
    "a weight matrix": (lambda b, x: calls.rms_norm(b, x, x), ValueError, r"expected a weight \(37,\)"),
    "the weight's dtype": (lambda b, x: calls.rms_norm(b, x, x[0].astype("f8")), TypeError, "expected the same dtype"),
    "no axis": (lambda b, x: calls.rms_norm(b, np.array(1, np.float32), x[0]), ValueError, "at least one axis"),
    "negative eps": (lambda b, x: calls.rms_norm(b, x, x[0], -1.0), ValueError, "not negative, got -1.0"),
    "eps that is no number": (lambda b, x: calls.rms_norm(b, x, x[0], "1"), TypeError, "eps must be a number"),
    "eps nan": (lambda b, x: calls.rms_norm(b, x, x[0], float("nan")), ValueError, "finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises_the_same_on_every_backend(backend, x, case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call(backend, x)


def test_out_that_repeats_memory_is_refused(backend, x):
    out = np.lib.stride_tricks.as_strided(np.zeros(37, np.float32), (6, 37), (0, 4))
    with pytest.raises(ValueError, match="several elements in the same memory"):
        calls.silu(backend, x, out)


def test_torch_tensors_come_back_as_torch_tensors(backend, x):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        t = torch.from_numpy(x).to(dtype)
        got = calls.silu(backend, t)
        assert got.dtype == dtype and got.shape == t.shape
        torch.testing.assert_close(got, torch.nn.functional.silu(t))
        weight = torch.linspace(1, 2, 37).to(dtype)
        want = torch.nn.functional.rms_norm(t.double(), (37,), weight.double(), 1e-6)
        torch.testing.assert_close(calls.rms_norm(backend, t, weight), want.to(dtype))
        out = torch.empty_like(t)
        assert calls.gelu(backend, t, "tanh", out) is out
        torch.testing.assert_close(out, torch.nn.functional.gelu(t, approximate="tanh"))


def test_torch_tensors_that_would_lose_something_are_refused(backend, x):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="requires grad"):
        calls.silu(backend, torch.zeros(3, requires_grad=True))
    with torch.no_grad():
        calls.silu(backend, torch.zeros(3, requires_grad=True))
    with pytest.raises(TypeError, match="got int64"):
        calls.silu(backend, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="is on meta"):
        calls.silu(backend, torch.zeros(3, device="meta"))


def test_16_bit_x_takes_a_float32_weight(backend, x):
    got = calls.rms_norm(backend, x.astype(np.float16), np.linspace(1, 2, 37, dtype=np.float32))
    assert got.dtype == np.float16
    want = oracle.rms_norm(x.astype(np.float16), np.linspace(1, 2, 37, dtype=np.float32), 1e-6)
    assert oracle.ulps(got, want, "float16") <= 1


def test_bfloat16_from_ml_dtypes_keeps_its_dtype(backend, x):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = x.astype(ml_dtypes.bfloat16)
    got = calls.silu(backend, values)
    assert got.dtype == values.dtype
    assert oracle.ulps(got.astype(np.float64), oracle.silu(values.astype(np.float64)), "bfloat16") <= 1


def test_dlpack_arrays_are_read_without_a_copy(backend, x):
    class Array:
        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    right(calls.silu(backend, Array()), x)
