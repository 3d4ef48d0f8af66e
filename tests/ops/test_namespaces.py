"""`gt.fft`, `gt.special`, `gt.masked` and `gt.signal.windows` have PyTorch's names and give its numbers and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt

LINES = """
t.fft.fft(x); t.fft.ifft(x, 7, 0, "ortho"); t.fft.rfft(x, norm="forward"); t.fft.irfft(c, 6); t.fft.irfft(c, 3, 0)
t.fft.hfft(c)
t.fft.ihfft(x, 9); t.fft.fft2(c); t.fft.ifftn(c, (2, 8)); t.fft.rfftn(x, dim=(1, 0)); t.fft.irfftn(c, (4, 5), norm="ortho")
t.fft.hfftn(c, (4, 6)); t.fft.ihfftn(x, dim=(0, 1)); t.fft.fftshift(x); t.fft.ifftshift(x, 1); t.fft.fftfreq(5, 0.5)
t.fft.rfftfreq(6); t.fft.fft(n); t.fft.rfft(n)
t.special.i0e(x); t.special.i1e(x); t.special.erfcx(x); t.special.ndtr(x); t.special.ndtri(q); t.special.log_ndtr(x * 9)
t.special.entr(q); t.special.xlog1py(x[:3, :4], q); t.special.zeta(2.5, q); t.special.gammainc(q.detach(), q * 2)
t.special.gammaln(q)
t.special.multigammaln(q + 2, 2); t.special.expit(x); t.special.psi(q); t.special.legendre_polynomial_p(q, 4)
t.igammac(q.detach(), q)
t.masked.sum(x, 1, mask=m); t.masked.mean(x, 0, mask=m); t.masked.amax(x, 1, mask=m); t.masked.softmax(x, 1, mask=m)
t.masked.var(x, 1, mask=m, unbiased=False); t.masked.norm(x, 3.0, 0, mask=m); t.masked.median(x, 1, mask=m)
t.masked.logsumexp(x, 0, mask=m[0]); t.masked.normalize(x, 2.0, 1, mask=m); t.masked.prod(n, 1, mask=m)
t.masked.argmin(x, 0, mask=m)
t.signal.windows.hann(7); t.signal.windows.kaiser(6, beta=8.0, sym=False); t.signal.windows.gaussian(5, std=2.0)
t.signal.windows.exponential(6, tau=2.0); t.signal.windows.general_hamming(4, alpha=0.6); t.signal.windows.cosine(0)
t.signal.windows.bartlett(1, dtype=t.float64); t.signal.windows.nuttall(9); t.signal.windows.blackman(3)
"""
CALLS = [line.strip() for line in LINES.replace("\n", ";").split(";") if line.strip()]
REFUSED = ['t.fft.fft(x, norm="none")', "t.fft.rfft(c)", "t.fft.fft(x, 0)", "t.fft.fftn(x, (2,), (0, 1))",
           "t.masked.mean(n, 0)",
           "t.signal.windows.hann(-1)", "t.signal.windows.gaussian(3, std=-1.0)", "t.igamma(n, n)",
           "t.special.zeta(q, q)"]  # fmt: skip


def run(line, t):
    rng = np.random.default_rng(2)
    values = {"x": rng.uniform(-2, 2, (4, 5)), "q": rng.uniform(0.1, 0.9, (3, 4))}
    values["c"] = rng.uniform(-2, 2, (3, 4)) + 1j * rng.uniform(-2, 2, (3, 4))
    names = {name: t.tensor(v, requires_grad=True) for name, v in values.items()}
    names |= {"n": t.tensor(rng.integers(1, 9, (4, 5))), "m": t.tensor(rng.random((4, 5)) < 0.7)}
    with torch.enable_grad():
        y = eval(line, {"t": t, **names})
        if y.requires_grad:
            (y * (0.5 + 0.25j)).real.square().sum().backward()
    return y.detach(), {name: names[name].grad for name in values}


@pytest.fixture(scope="module", params=[("numpy", 1), ("pytorch", 3)], ids=str)
def _cluster(request):
    with gt.testing.cluster(request.param[1], request.param[0]):
        yield


@pytest.mark.parametrize("line", CALLS)
def test_a_line_gives_the_same_as_in_pytorch(line, _cluster):
    (found, ours), (want, theirs) = run(line, gt), run(line, torch)
    assert str(found.dtype).removeprefix("gt.") == str(want.dtype).removeprefix("torch.")
    np.testing.assert_allclose(found.numpy(), want.resolve_conj().numpy(), rtol=1e-6, atol=1e-7, strict=True)
    for name, g in theirs.items():
        assert (ours[name] is None) == (g is None), f"a gradient for {name}"
        if g is not None:
            np.testing.assert_allclose(ours[name].numpy(), g.resolve_conj().numpy(), rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("line", REFUSED)
def test_a_line_that_pytorch_refuses_is_refused(line):
    with gt.testing.cluster(1, "numpy"):
        for t in (torch, gt):
            with pytest.raises((RuntimeError, ValueError, TypeError)):
                run(line, t)


@pytest.mark.parametrize("space", ["fft", "special", "masked", "linalg"])
def test_no_public_name_is_missing(space):
    theirs = {n for n in dir(getattr(torch, space)) if not n.startswith("_") and callable(getattr(getattr(torch, space), n))}
    theirs = {n for n in theirs if n.islower() and getattr(getattr(torch, space), n).__module__ != "typing"}
    ours = set(dir(getattr(gt, space)))
    assert (
        sorted(theirs - ours - {"factory_common_args", "common_args", "is_masked_tensor", "masked_tensor", "as_masked_tensor"})
        == []
    )
