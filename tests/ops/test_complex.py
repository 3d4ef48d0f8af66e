"""Complex tensors are PyTorch's: values, dtypes, gradients in its convention, how they print, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt

# Lines that make a tensor of `a` (complex, 3x3), `b` (real), `p` (a positive matrix), `c` (complex, 2x3x4); t is torch or gt.
LINES = """
a * b + 2j; 1j - a; a / (2 - 1j); 2j / a; a ** 2; a ** 1.5; a ** b; 2.0 ** a; (1 + 1j) ** b; a ** a; -a; a.abs(); abs(a)
a.real; a.imag; t.real(b); a.conj(); a.angle(); b.angle(); t.sgn(a); a.exp(); a.log(); a.sqrt(); a.rsqrt(); a.sin(); a.tan()
a.acosh(); a.atanh(); a.tanh(); a.sigmoid(); a.square(); a.reciprocal(); a.log1p(); a.expm1(); a.log2(); a.log10()
a == a.conj(); a != b; t.isreal(a); a.isnan(); a.isfinite(); t.is_complex(a); a.is_complex()
a.sum(); a.sum(0); a.mean(1); a.prod(); a.prod(0); a.cumsum(0); a.cumprod(1); a.var(); a.std(0); a.norm(); a.any(); a.all()
a @ a; a.mv(a[0]); t.vdot(a[0], a[1]); t.dot(a[0], a[1]); c @ c.mH; t.einsum("ij,jk->ki", a, a); t.outer(a[0], a[1])
t.addmm(a, a, a, alpha=2.0); t.linalg.vecdot(a, a * 2j); a.mH; a.H; a.adjoint(); a.T; a.mT; t.complex(b, b * 2)
t.polar(b.abs(), b); t.view_as_real(a); t.view_as_complex(c.real[..., :2].contiguous()); t.where(b > 0, a, 1j); a.resolve_conj()
a.masked_fill(b > 0, 2 - 1j); a[0]; a[:, 1:]; a[a.abs() > 1]; t.cat((a, a)); t.stack((a, a), 1); a.flip(0); a.roll(1, 0)
a.diagonal(); a.tril(); a.reshape(9); c.permute(2, 0, 1); a.gather(0, t.zeros(1, 3, dtype=t.int64)); t.trace(a)
a.to(t.complex64); a.cfloat(); b.cdouble(); b.to(t.complex64); t.tensor([1, 2j]); t.tensor(1 - 2j); t.full((2,), 1j)
t.zeros(2, dtype=t.complex64); t.eye(2, dtype=t.complex128); t.ones_like(a); a.new_full((2,), 1j); t.tensor([1.5]) * 1j
t.linalg.inv(a); t.linalg.det(a); t.linalg.slogdet(a); t.linalg.solve(a, c[0]); t.linalg.cholesky(p).tril(-1); t.matrix_exp(a)
t.linalg.eigvalsh(p); t.linalg.svdvals(a); t.linalg.qr(a)[1].abs(); t.linalg.matrix_norm(a, "nuc"); t.linalg.lu_factor(a)[0]
(lambda u, s, v: u @ (v * s.sqrt().unsqueeze(-1)))(*t.linalg.svd(a)); (lambda w, v: (v * w) @ v.mH @ v)(*t.linalg.eigh(p)).abs()
t.linalg.eigvals(a).prod(); t.linalg.eigvals(b).square().sum(); (lambda w, v: (v * w) @ t.linalg.inv(v))(*t.linalg.eig(a))
(lambda w, v: (v.abs() * w.abs()).sum())(*t.linalg.eig(b)); t.linalg.ldl_factor(p, hermitian=True)[0].detach().tril()
t.linalg.lu_solve(*t.linalg.lu_factor(a), a * 2j, adjoint=True); t.linalg.pinv(p, hermitian=True); t.linalg.lu(c[0])[2]
t.linalg.solve_triangular(a, a, upper=True); t.linalg.pinv(c[0]); t.linalg.matrix_power(a, 3); t.tensor(2) * 1j
"""
REFUSED = "a < a; a >= 1j; a.floor(); a.sort(); t.maximum(a, a); a.clamp(0, 1); a % 2; a.sign(); b.imag; a.sum().backward()"
CALLS = [line.strip() for line in LINES.replace("\n", ";").split(";") if line.strip()]


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)

    def drawn(*shape: int) -> np.ndarray:
        return rng.uniform(-2, 2, shape) + 1j * rng.uniform(-2, 2, shape)

    a = drawn(3, 3)
    return {"a": a, "b": rng.uniform(-2, 2, (3, 3)), "p": a @ a.conj().T + np.eye(3), "c": drawn(2, 3, 4)}


def run(line: str, t: Any) -> tuple[Any, dict[str, Any]]:
    names = {name: t.tensor(v, requires_grad=True) for name, v in values().items()}
    with torch.enable_grad():
        found = eval(line, {"t": t, **names})
    return (found if isinstance(found, tuple) else (found,)), names


@pytest.fixture(scope="module", params=[("numpy", 1), ("pytorch", 1), ("pytorch", 3)], ids=str)
def _cluster(request):
    with gt.testing.cluster(request.param[1], request.param[0]):
        yield


@pytest.mark.parametrize("line", CALLS)
def test_a_line_on_complex_tensors_gives_the_same_in_gt(line: str, _cluster):
    found, ours = run(line, gt)
    want, theirs = run(line, torch)
    assert len(found) == len(want)
    for f, w in zip(found, want):
        if not isinstance(w, torch.Tensor):
            assert f == w
            continue
        assert str(f.dtype).removeprefix("gt.") == str(w.dtype).removeprefix("torch.")
        first, second = f.detach().numpy(), w.detach().resolve_conj().numpy()
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6, strict=True)
        assert f.requires_grad == w.requires_grad
    roots = [i for i, w in enumerate(want) if isinstance(w, torch.Tensor) and w.requires_grad]
    if not roots:
        return
    with torch.enable_grad():
        for got in (found, want):
            loss = [(got[i] * (1 - 0.5j)).imag.sum() + got[i].abs().square().sum() for i in roots]
            sum(loss[1:], loss[0]).backward()
    for name, leaf in theirs.items():
        if leaf.grad is None:
            assert ours[name].grad is None or not np.abs(ours[name].grad.numpy()).sum()
        else:
            first, second = ours[name].grad.numpy(), leaf.grad.resolve_conj().numpy()
            np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6, strict=True, err_msg=name)


@pytest.mark.parametrize("line", REFUSED.split("; "))
def test_ops_that_complex_tensors_lack_are_refused(line: str):
    with gt.testing.cluster(1, "numpy"):
        with pytest.raises((RuntimeError, TypeError)):
            run(line, torch)
        with pytest.raises((RuntimeError, TypeError)):
            run(line, gt)


def test_complex_tensors_print_as_in_pytorch():
    with gt.testing.cluster(1, "numpy"):
        for data in ([1 + 2j, 3.5 - 1j], 2j, [[1e-7 + 1j, 1e5 - 1j]], [float("nan") + 1j, 1 - 1j]):
            assert str(gt.tensor(data)) == str(torch.tensor(data))
        assert repr(gt.zeros(2, dtype=gt.complex128)) == "tensor([0.+0.j, 0.+0.j], dtype=gt.complex128)"


def test_complex_numbers_are_read_and_given_back():
    with gt.testing.cluster(2):
        x = gt.from_numpy(np.array([1 + 2j, 3], np.complex64))
        assert x.tolist() == [1 + 2j, 3 + 0j] and complex(x[0]) == x[0].item() == 1 + 2j
        assert gt.tensor(torch.tensor([1j]).conj()).tolist() == [-1j]
        assert gt.tensor([1j, 2]).dtype is gt.complex64 and gt.finfo(gt.complex128).dtype is gt.float64


def test_a_repeated_step_on_complex_parameters_is_replayed():
    with gt.testing.cluster(1):
        w, target = gt.tensor([1 + 1j, -2j], requires_grad=True), gt.tensor([0.5j, 1.0])
        for _ in range(40):
            loss = (w * (1 + 0.1j) - target).abs().square().sum()
            loss.backward()
            with gt.no_grad():
                w -= 0.2 * w.grad
            w.grad = None
        np.testing.assert_allclose(w.detach().numpy(), np.array([0.5j, 1.0]) / (1 + 0.1j), atol=1e-5)
