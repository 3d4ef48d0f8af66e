"""The Triton kernels on a real GPU, with tensors that lie there; the tests of tests/tensor_ops cover host arrays."""

import numpy as np
import pytest

from gt.tensor_ops import calls, choice

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cuda():
    if reason := choice.process.reason("cuda"):
        pytest.skip(f"cuda: {reason}")
    return choice.module("cuda")


@pytest.fixture(scope="module")
def python():
    return choice.module("python")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(7,), (3, 1000), (2, 5, 4096), (2, 40000)])
def test_gpu_tensors_give_numpy_s_results(cuda, python, dtype, shape):
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 4).to(getattr(torch, dtype))
    weight = torch.linspace(0.5, 1.5, shape[-1]).to(x.dtype)
    there, weight_there = x.cuda(), weight.cuda()
    for call in (calls.silu, calls.gelu, lambda b, v: calls.gelu(b, v, "none")):
        got = call(cuda, there)
        assert got.is_cuda and got.dtype == x.dtype
        torch.testing.assert_close(got.cpu(), call(python, x))
    got = calls.rms_norm(cuda, there, weight_there)
    torch.testing.assert_close(got.cpu(), calls.rms_norm(python, x, weight))


def test_strides_out_and_overlap_are_right_on_the_gpu(cuda):
    x = torch.randn(64, 48, device="cuda")
    want = torch.nn.functional.silu(x)
    torch.testing.assert_close(calls.silu(cuda, x.T), want.T)
    out = torch.empty(48, 64, device="cuda").T
    assert calls.silu(cuda, x, out) is out
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(calls.silu(cuda, x[::2, 1::3]), want[::2, 1::3])
    line = x.reshape(-1).clone()
    want = torch.nn.functional.silu(line[:-1])
    calls.silu(cuda, line[:-1], line[1:])
    torch.testing.assert_close(line[1:], want)
    calls.silu(cuda, x, x)


def test_a_weight_may_lie_in_out_or_on_the_host(cuda):
    x = torch.randn(4, 4096, device="cuda")
    want = torch.nn.functional.rms_norm(x, (4096,), x[2], 1e-6)
    torch.testing.assert_close(calls.rms_norm(cuda, x, x[2].cpu().numpy()), want)
    calls.rms_norm(cuda, x, x[2], 1e-6, x)
    torch.testing.assert_close(x, want)


def test_bad_gpu_input_raises_as_on_the_host(cuda):
    x = torch.randn(4, 8, device="cuda")
    with pytest.raises(TypeError, match="got int64"):
        calls.silu(cuda, x.long())
    with pytest.raises(ValueError, match="expected a weight"):
        calls.rms_norm(cuda, x, x[0, :3])
    with pytest.raises(ValueError, match="out must be"):
        calls.silu(cuda, x, x[1:])
    with pytest.raises(TypeError, match="requires grad"):
        calls.silu(cuda, x.clone().requires_grad_())
    assert calls.silu(cuda, x[:0]).shape == (0, 8)


def test_more_than_two_to_the_31_elements_are_all_computed(cuda):
    count = (1 << 31) + 4096
    if torch.cuda.mem_get_info()[0] < 3 * 2 * count:
        pytest.skip("too little GPU memory")
    x = torch.ones(count, dtype=torch.float16, device="cuda")
    got = calls.silu(cuda, x)
    assert (got == got[0]).all().item() and abs(got[-1].item() - 0.731) < 1e-3


def test_rms_norm_of_squares_out_of_range_is_right_on_the_gpu(cuda, python):
    for dtype, scale in ((torch.float32, 1e30), (torch.float32, 1e-30), (torch.float64, 1e250)):
        x, weight = torch.randn(3, 300, dtype=dtype) * scale, torch.ones(300, dtype=dtype)
        got = calls.rms_norm(cuda, x.cuda(), weight.cuda(), 0.0).cpu()
        torch.testing.assert_close(got, calls.rms_norm(python, x, weight, 0.0))


def test_the_automatic_choice_keeps_arrays_of_the_host_there_and_tensors_of_the_gpu(cuda, monkeypatch):
    monkeypatch.delenv("GT_TENSOR_OPS_BACKEND", raising=False)
    chosen = choice.KernelChoice()
    assert chosen.active().name != "cuda"  # an array of the host would cross the bus twice
    assert chosen.pick(np.zeros(10, np.float32)).name in ("cpp", "python")
    assert chosen.pick(torch.zeros(10, device="cuda")).name == "cuda"
