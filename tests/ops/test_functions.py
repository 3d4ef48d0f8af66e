"""Users' lines, as they stand in a PyTorch script: each line is run with PyTorch and with GT, on both engines, and must
give the same values, dtypes and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import gt
import gt.nn.functional as GF
from tests.ops.oracle import derivatives

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce")
LINES = """
x + 1; 1 + x; x - 1; 1 - x; 2 * x; x / 2; 2 / x; x ** 2; 2 ** x; (x // 0.3).detach(); x % 0.7; -x; abs(x); x @ y; n // 2
n % 3; -n; n ** 2; n & 3; n | 4; n ^ 5; ~n; n << 1; n >> 1; m & ~m; m | m; m ^ m; x > z; x <= 0.5; x == x; n != 2; 3 - n
7 // p; 7 % p; n / 2; t.add(x, z, alpha=2); x.add(z); x.sub(z, alpha=0.5); x.mul(2); x.div(z, rounding_mode="floor")
x.div(z, rounding_mode="trunc"); n.div(p, rounding_mode="trunc"); x.true_divide(2); t.multiply(x, z); t.subtract(x, 1)
x.pow(2); t.pow(2, x); x.neg(); x.abs(); t.floor(x); x.ceil(); x.round(); x.round(decimals=1); x.trunc(); x.frac()
x.sign(); p.reciprocal(); q.rsqrt(); x.square(); q.sqrt(); x.exp(); x.exp2(); x.expm1(); q.log(); q.log2(); q.log10()
q.log1p(); x.sin(); x.cos(); u.tan(); u.asin(); u.acos(); x.atan(); t.atan2(x, z); x.sinh(); x.cosh(); x.tanh()
x.asinh(); u.atanh(); (q + 1).acosh(); x.erf(); x.erfc(); u.erfinv(); x.sigmoid(); x.relu(); t.arcsin(u); t.absolute(x)
u.logit(); (u * 0.4 + 0.5).logit(1e-6); x.sinc(); t.logaddexp(x, z); t.hypot(x, z); q.xlogy(q); x.clamp(-0.5, 0.5)
x.clamp(min=0.1); x.clamp(max=0.2); x.clip(0, 1); x.clamp(z, z + 1); x.clamp_min(0.0); n.clamp(1, 2); t.maximum(x, z)
t.minimum(x, z); x.fmod(0.7); x.remainder(-0.7); n.fmod(3); t.floor_divide(x.detach(), 0.3); t.lerp(x, z, 0.3)
x.lerp(z, u); t.addcmul(x, z, z, value=0.5); t.addcdiv(x, z, q, value=2.0); t.where(m, x, z); t.where(m, x, 0.0)
x.where(m, z); t.where(x > 0, 1, 2); x.isnan(); x.isinf(); x.isfinite(); m.logical_not(); m.logical_and(x > 0)
t.logical_xor(m, x > 0); x.nan_to_num(); t.isclose(x, z); x.masked_fill(m, 0.5); n.masked_fill(n > 2, 7)
t.result_type(x, n); t.promote_types(t.float16, t.bfloat16); t.can_cast(t.int64, t.int8); x.sum(); x.sum(0)
x.sum(dim=1, keepdim=True); x.sum((0, 1)); n.sum(); m.sum(); x.mean(); x.mean(-1); cube.mean((0, 2)); x.prod()
x.prod(1); x.var(); x.var(0); x.std(1, keepdim=True); x.var(unbiased=False); x.std(dim=0, correction=0)
cube.var((0, 1)); t.var_mean(x, dim=0); m.any(); m.all(); m.any(0); x.all(1); x.amax(); x.amin(1)
x.amax((0, 1), keepdim=True); x.max(); x.min(); x.max(1); x.min(dim=0, keepdim=True); x.argmax(); x.argmin(1)
x.argmax(dim=0, keepdim=True); x.logsumexp(1); x.logsumexp((0, 1)); n.logsumexp(0); x.softmax(1); t.softmax(x, dim=0)
x.log_softmax(-1); x.softmax(1, dtype=t.float32); x.norm(); x.norm(dim=1); x.norm(1); x.norm(p=3, dim=0, keepdim=True)
x.norm(float("inf")); x.median(); x.median(1); x.median(dim=0, keepdim=True); x.nansum(1); x.nanmean(0)
t.count_nonzero(n); n.count_nonzero(0); t.dist(x, z); x.cumsum(0); x.cumsum(dim=1); x.cumprod(1); n.cumsum(0)
m.cumsum(0); t.diff(x); t.diff(x, dim=0); x.aminmax(); t.std_mean(x, dim=1); x.sort(); x.sort(0, descending=True)
x.argsort(1); x.topk(2); x.topk(2, dim=0, largest=False); t.msort(x); x.kthvalue(2); t.unique(n)
t.unique(n, return_counts=True); t.unique(n, return_inverse=True); n.reshape(-1).clamp(0).bincount()
t.histc(x, 5, -1, 1); t.searchsorted(edges, x); t.searchsorted(edges, x, right=True); t.bucketize(x, edges)
t.nonzero(n); n.nonzero(as_tuple=True); t.argwhere(m); x.matmul(y); t.mm(x, y); cube.bmm(cube.mT); t.mv(x, v)
t.dot(v, v); t.outer(v, v); t.inner(x, x); v @ y; x @ v; v @ v; cube @ y; cube @ cube.mT
t.addmm(x @ y, x, y, beta=0.5, alpha=2); t.addmm(y[0], x, y); t.baddbmm(cube @ cube.mT, cube, cube.mT)
t.addmv(v[:3], x, v); t.einsum("ij,jk->ik", x, y); t.einsum("ij,jk", x, y); t.einsum("ii->i", s); t.einsum("ii", s)
t.einsum("...i,ij->...j", cube, y); t.einsum("bij,bkj->bik", cube, cube); t.einsum("i,j->ij", v, v); t.einsum("ij->", x)
t.einsum("ij->ji", x); t.einsum("ij,ij->i", x, z); t.tensordot(x, y, 1); t.tensordot(x, z, ([0, 1], [0, 1]))
t.tensordot(cube, x, ([1, 2], [0, 1])); t.kron(x, z); t.kron(v, v); t.eye(2).int(); x.tril(); x.triu(1); cube.tril(-1)
t.diag(v); t.diag(s); t.diag(x, 1); t.diagonal(cube, 0, 1, 2); cube.diagonal(1, 0, 2); s.trace(); t.diag_embed(x)
t.cross(s, s + 1, dim=1); x.reshape(2, 6); x.reshape(-1); x.view(4, 3); x.t(); x.T; cube.mT; cube.permute(2, 0, 1)
cube.transpose(0, 2); x.flatten(); cube.flatten(1); t.ravel(x); cube.unflatten(2, (2, 2)); x.unsqueeze(0)
x.unsqueeze(-1).squeeze(-1); cube[:, :1].squeeze(); x.squeeze(); x.split(2, 1); x.split([1, 2]); x.chunk(2, dim=1)
x.chunk(3, 1); t.tensor_split(x, 3, dim=1); x.unbind(0); t.unbind(x, dim=1); x.select(1, 2); cube.movedim(0, 2)
cube.movedim((0, 1), (2, 0)); cube.swapaxes(0, 1); t.moveaxis(cube, 2, 0); x.flip(0); t.flip(x, (0, 1)); x.fliplr()
x.rot90(); x.roll(1, 0); x.roll((1, -1), (0, 1)); x.roll(2); x.repeat(2, 3); v.repeat(2, 2); x.tile((2,))
t.tile(v, (2, 2)); x.repeat_interleave(2, dim=1); x.repeat_interleave(2)
x.repeat_interleave(t.tensor([1, 0, 2]), dim=0); x.expand(2, 3, 4); v.expand(3, -1); t.broadcast_to(v, (2, 4))
x.expand_as(cube); t.cat((x, z)); t.cat([x, z], dim=1); t.concat((x, z), dim=0); t.stack((x, z))
t.stack([x, z], dim=-1); t.hstack((v, v)); t.vstack((v, v)); t.hstack((x, z)); t.dstack((x, z)); t.column_stack((v, v))
t.atleast_2d(v); t.meshgrid(v, v[:2], indexing="ij"); t.meshgrid(v, v[:2], indexing="xy"); x.narrow(1, 1, 2)
t.narrow(x, 0, 1, 1); x.gather(1, i); t.gather(x, 0, i[:, :2]); x.scatter(1, i[:, :1], z[:, :1]); x.scatter(1, i, 2.0)
x.scatter_add(1, i, z[:, :3]); x.scatter_add(0, j.expand(2, 4), z[:2]); x.index_select(1, k)
t.index_select(x, 0, k[:1]); x.take(k); x.index_add(1, k, z[:, :2], alpha=2.0); x.index_copy(1, k, z[:, :2])
x.index_fill(1, k, 0.5); x.index_put((k, k), v[:2]); x.index_put((k,), v[0]); t.take_along_dim(x, i, dim=1)
t.take_along_dim(x, x.argsort(1), 1); t.take_along_dim(x, j, dim=0); x.masked_select(m); x.masked_scatter(m, z); x[0]
x[-1]; x[1, 2]; x[1:]; x[:, 1:3]; x[::2, 1]; x[..., 0]; x[None]; x[:, None, 1:]; x[k]; x[:, k]; x[k, k]; x[[0, 2]]
x[[0, 2], [1, 3]]; x[m]; x[m[:, 0]]; x[:, m[0]]; cube[:, k]; cube[k[:1] * 0, :, k]; cube[0, :, k]; cube[..., k]
cube[:, k, 1:3]; cube[m[:2, :3]]; x[x > 0]; x[i[:, :1], k]; x[True]; x[False]; cube[k[:1] * 0, 1:, [0, 2]]
cube[:, [0, 2], None]; x[t.tensor(1)]; cube[t.tensor([True, False])]; x[-2:, [-1, 0]]; x[()]; x[1:1]
cube[1, [0, 1], [1, 2]]; t.zeros(2, 3); t.ones((2,)); t.full((2, 2), 7); t.full((2,), 1.5); t.zeros_like(x)
t.ones_like(n); t.full_like(x, 2); t.empty_like(x).shape; x.new_zeros(2); x.new_ones((2, 3)); x.new_full((2,), 3.0)
x.new_tensor([1, 2]); t.arange(5); t.arange(1, 2, 0.25); t.linspace(0, 1, 5); t.logspace(0, 2, 3); t.eye(3, 2)
t.tensor([1, 2]); t.tensor([1.5]); t.tensor(3); t.tensor([True]); t.as_tensor([1, 2]); x.to(t.float32); x.float()
x.long(); x.double(); x.half(); x.bool(); x.type_as(n); t.inverse(s); t.linalg.inv(s); t.det(s); t.linalg.slogdet(s)
t.logdet(s); t.linalg.solve(s, y[:3]); t.linalg.solve(s, v[:3]); t.linalg.cholesky(s)
t.linalg.solve_triangular(s.tril(), y[:3], upper=False); t.linalg.svdvals(x); t.linalg.eigvalsh(s)
t.linalg.matrix_norm(x); t.linalg.matrix_norm(x, 1); t.linalg.vector_norm(x, 3, dim=1); t.linalg.norm(v)
t.linalg.matrix_power(s, 3); t.linalg.pinv(x); t.linalg.multi_dot([x, y, y.mT]); t.cholesky_solve(y[:3], s.tril())
F.relu(x); F.gelu(x); F.gelu(x, approximate="tanh"); F.silu(x); F.leaky_relu(x, 0.2); F.elu(x, 0.5)
F.softplus(x, 2.0, 1.0); F.hardtanh(x, -0.5, 0.5); F.relu6(x); F.logsigmoid(x); F.mish(x); F.selu(x); F.hardswish(x)
F.hardsigmoid(x); F.glu(x); F.softsign(x); F.softmax(x, dim=1); F.log_softmax(x, dim=0); F.linear(x, y.t())
F.linear(x, y.t(), y[0]); F.layer_norm(x, (4,)); F.layer_norm(x, (4,), v, v); F.layer_norm(x, (4,), v)
F.layer_norm(cube, (3, 4)); F.rms_norm(x, (4,), v); F.group_norm(img, 2); F.group_norm(img, 2, v, v)
F.batch_norm(img, None, None, v, v, True); F.batch_norm(img, v.detach(), q[0].detach(), v, v); F.instance_norm(img)
F.conv1d(cube, ker1, padding=1); F.conv2d(img, ker2, v[:2], stride=2, padding=1); F.conv2d(img, ker2, padding="same")
F.conv2d(img[0], ker2); F.conv_transpose2d(img, ker2.transpose(0, 1), stride=2, padding=1, output_padding=1)
F.conv2d(img, ker2[:, :2].repeat(2, 1, 1, 1), groups=2); F.max_pool2d(img, 2); F.max_pool2d(img, 3, 2, 1)
F.max_pool1d(cube, 2); F.avg_pool2d(img, 2); F.avg_pool2d(img, 3, 2, 1, count_include_pad=False); F.avg_pool1d(cube, 2)
F.adaptive_avg_pool2d(img, 2); F.adaptive_avg_pool2d(img, (1, 3)); F.adaptive_avg_pool1d(cube, 3); F.pad(x, (1, 2))
F.pad(x, (1, 0, 0, 1), value=2.0); F.pad(x, (-1, 1)); F.pad(img, (1, 1, 1, 1), mode="reflect")
F.pad(img, (1, 0, 2, 1), mode="replicate"); F.pad(img, (1, 1, 1, 1), mode="circular"); F.one_hot(k, 4)
F.embedding(k, x); F.embedding(i, y, padding_idx=1); F.scaled_dot_product_attention(img, img, img)
F.scaled_dot_product_attention(img, img, img, is_causal=True); F.scaled_dot_product_attention(x, x, z, scale=0.3)
F.scaled_dot_product_attention(img, img[:, :2], img[:, :2], enable_gqa=True)
F.scaled_dot_product_attention(img, img, img, img.mT @ img); F.scaled_dot_product_attention(cube, cube, cube, m[:, :3])
F.cross_entropy(x, c); F.cross_entropy(x, c, v.detach(), label_smoothing=0.1)
F.cross_entropy(x, c, ignore_index=1, reduction="sum"); F.cross_entropy(x, z.softmax(1))
F.cross_entropy(x, c, reduction="none"); F.cross_entropy(img, img.argmax(1))
F.cross_entropy(x, z.softmax(1), label_smoothing=0.2, reduction="sum"); F.cross_entropy(v, c[0])
F.nll_loss(x.log_softmax(1), c); F.nll_loss(x, c, v.detach(), reduction="sum"); F.nll_loss(x, c, ignore_index=2)
F.mse_loss(x, z); F.l1_loss(x, z, reduction="none"); F.smooth_l1_loss(x, z); F.smooth_l1_loss(x, z, beta=0.3)
F.huber_loss(x, z, delta=0.5); F.binary_cross_entropy(x.sigmoid(), m.double())
F.kl_div(x.log_softmax(1), z.softmax(1), reduction="sum"); F.binary_cross_entropy_with_logits(x, m.double())
F.binary_cross_entropy_with_logits(x, m.double(), pos_weight=q[0].detach())
F.kl_div(x, z, log_target=True, reduction="batchmean"); F.cosine_embedding_loss(x, z, t.tensor([1, -1, 1]))
F.cosine_similarity(x, z); F.normalize(x, dim=1); F.dropout(x, 0.5, training=False)
"""
FURTHER = """
t.fmax(x, z); t.fmin(x, z); x.deg2rad(); x.rad2deg(); q.float_power(2); x.detach().heaviside(z.detach()); x.isposinf()
t.ldexp(x.detach(), n); t.logaddexp2(x, z); x.byte() if 0 else n.short(); x.quantile(0.3)
x.quantile(t.tensor([0.2, 0.8], dtype=t.float64), dim=1); x.quantile(0.5, dim=0, keepdim=True); x.cov(); x.corrcoef()
t.unique_consecutive(n); t.addbmm(s[:, :3], cube[:, :3, :3], cube[:, :3, 1:]); v.diagflat(); x.hsplit(2); x.vsplit(3)
cube.dsplit(2); x.split_with_sizes([1, 2]); x.narrow_copy(1, 0, 2); x.unfold(1, 2, 1); x.unfold(0, 2, 1)
cube.unfold(2, 3, 1); x.select_scatter(v, 0, 1); x.slice_scatter(z[:2], 0, 0, 2); s.diagonal_scatter(v[:3])
x.view_as(z); x.mH; x.real; t.block_diag(x, y); t.cartesian_prod(v, v[:2]); t.tril_indices(3, 4); q.lgamma()
q.digamma(); t.polygamma(2, q); q.polygamma(0); (q + 2).mvlgamma(2); x.i0(); t.copysign(x, z); x.copysign(-1.0)
x.signbit(); n.signbit(); p.gcd(n); p.lcm(p + 1); x.frexp(); x.cummax(1); x.cummin(dim=0); n.cummax(0)
x.logcumsumexp(1); (n % 3).mode(1); (n % 3).mode(0, keepdim=True); x.nanmedian(); x.nanmedian(1)
t.where(m, x, float("nan")).nanmedian(0, keepdim=True); t.where(x > 0, x, float("nan")).nanquantile(0.3, dim=1)
x.nanquantile(0.7); x.nanquantile(t.tensor([0.2, 0.9], dtype=t.float64), 0); x.scatter_reduce(1, i, z[:, :3], "amax")
x.scatter_reduce(0, i, z[:, :3], "amin", include_self=False); x.scatter_reduce(1, i, z[:, :3], reduce="prod")
x.scatter_reduce(1, i, z[:, :3], "mean"); x.scatter_reduce(1, i, z[:, :3], "mean", include_self=False)
x.scatter_reduce(1, i, z[:, :3], "sum", include_self=False); n.scatter_reduce(1, i, p[:, :3], "mean")
n.scatter_reduce(1, i, p[:, :3], "amax", include_self=False); x.index_reduce(1, k, z[:, :2], "amax")
x.detach().index_reduce(0, k, z.detach()[:2], "mean", include_self=False); x.put(k, v[:2])
x.put(k, v[:2], accumulate=True); x.renorm(2, 0, 1.0); x.hardshrink(0.7); x.prelu(v[:1] * 0.1)
t.histogram(x.detach(), 4); t.histogram(x.detach(), 4, range=(-1, 1), density=True)
t.histogram(x.detach(), edges, weight=q.detach()); t.matrix_exp(s); t.linalg.matrix_exp(s * 3)
t.cholesky_inverse(s.tril()); t.linalg.lu_factor(s); t.linalg.lu(s); t.linalg.lu(x.detach())
t.linalg.lu_solve(*t.linalg.lu_factor(s), y[:3]); t.linalg.cond(s); t.linalg.cond(s.detach(), 1)
t.linalg.matrix_rank(s); t.linalg.matrix_rank(x, tol=1.5); t.linalg.lstsq(s.detach(), y[:3].detach())[0]
t.linalg.vander(v, N=3); t.vander(v.detach()); t.vander(v.detach(), 3, increasing=True); t.linalg.vecdot(x, z)
t.linalg.tensorinv(s, 1); t.linalg.tensorsolve(s, v[:3]); t.isin(n, t.tensor([1, 2])); t.isin(n, 2, invert=True)
t.trapezoid(x); t.trapezoid(x, z); t.trapezoid(x, dx=0.5, dim=0); t.trapezoid(x, v); t.cumulative_trapezoid(x)
t.cdist(x, z); t.cdist(x, z + 3, p=1.0); t.pdist(x); t.combinations(v); t.combinations(v, 3, True)
t.unravel_index(k, (2, 3)); t.broadcast_shapes((2, 1), (3,)); t.hann_window(6); t.hamming_window(5, periodic=False)
t.blackman_window(7); t.bartlett_window(6); t.kaiser_window(6, False, 8.0); t.scalar_tensor(3); t.asarray([1.5, 2.0])
t.gradient(v); t.gradient(x, spacing=2.0, dim=1); t.frombuffer(bytearray(b"abcd"), dtype=t.uint8); F.softshrink(x)
F.hardshrink(x, 0.3); F.threshold(x, 0.1, 3.0); F.pixel_shuffle(img, 2)
F.interpolate(img, size=3, mode="bicubic", align_corners=True)
F.bilinear(x, z, cube[:, :, :1].expand(2, 3, 4).mT @ cube); F.adaptive_max_pool2d(img, (1, 3))
F.lp_pool2d(q.expand(2, 3, 4), 2.0, 2); F.local_response_norm(img, 2); F.unfold(img, 2)
F.fold(F.unfold(img, 2), (4, 4), 2); F.pairwise_distance(x, z); F.embedding_bag(i, y, mode="sum")
F.embedding_bag(i.reshape(-1), y, c * 3 - c * 3 + t.tensor([0, 2, 5]), mode="max"); F.gaussian_nll_loss(x, z, q)
t.triu_indices(3, 4, 1); x.is_signed(); x.angle(); cube.stride(); x.stride(0); cube[:, :1].contiguous().stride()
x.is_cuda; x.is_sparse; x.element_size(); x.nelement(); x.is_contiguous(); x.is_same_size(z)
"""
# The lines of which `a` is compared afterwards.
CHANGES = """
a = x * 1; a += z; a *= 2; a -= 1; a /= 3
a = x * 1; a.add_(z, alpha=2); a.mul_(z); a.sub_(1); a.div_(q); a.pow_(2); a.neg_()
a = x * 1; a.clamp_(-0.5, 0.5); a.mul_(2)
a = x * 1; a.exp_()
a = x * 1; a.mul_(0.5); a.tanh_()
a = x * 1; a.relu_()
a = x * 1; a.masked_fill_(m, 0.5); a.lerp_(z, 0.3); a.addcmul_(z, z, value=2.0); a.addcdiv_(z, q)
a = x * 1; a[0] = 1; a[:, 1] = v[:3]; a[m] = 0; a[k] += 1; a[1:, ::2] *= 2; a[..., -1] = z[:, 0]
a = x * 1; a[m] = z[m]; a[k, k] = v[:2]; a[[0, 2]] = 5.0; a[None] = z; a[x > 1] = 2.0
a = x * 1; a.scatter_(1, i[:, :1], 2.0); a.scatter_add_(1, i, z[:, :3]); a.index_add_(0, k, z[:2]); a.index_fill_(1, k, 0.0)
a = x * 1; a.copy_(z); a.fill_(2.0); a.zero_()
a = x * 1; a.unsqueeze_(0); a.squeeze_(0); a.t_(); a.transpose_(0, 1); a.tril_(); a.cumsum_(0)
a = x * 1; a.index_put_((k, k), v[:2], accumulate=True); a.index_copy_(0, k, z[:2]); a.round_(); a.abs_()
a = n * 1; a += 1; a //= 2; a %= 3; a &= 1; a |= 6; a <<= 1; a ^= 3
a = n * 1; a[0] = 2.9; a.clamp_(0, 3); a.bitwise_and_(1); a.fill_(4)
a = m.clone(); a &= m; a |= ~m; a.logical_not_()
a = x.detach().clone(); a.put_(k, v[:2].detach()); a.fill_diagonal_(7.0)
a = x * 1; a.scatter_reduce_(1, i, z[:, :3], "amax")
a = x * 1; a.renorm_(2, 0, 1.0)
a = x * 1; t.exp_(a)
a = x * 1; a.copysign_(z)
a = q * 1; a.digamma_(); a.i0_(); t.relu_(a)
a = q * 1; a.lgamma_(); a.index_reduce_(0, k, z[:2], "amin")
a = p * 1; a.gcd_(n); a.lcm_(p)
"""
# Lines that PyTorch refuses. (A leaf that wants gradients does not change in place.)
REFUSED = """
x + y; x @ x; x.reshape(5); x.view(-1, -1); x.sum(5); t.cat((x, y)); t.cat([]); t.stack((x, y)); x.expand(2, 4)
y.squeeze(7); x.gather(1, x); x.gather(1, k); x.index_select(3, k); x.scatter(1, i, n[:, :3]); x.softmax(4)
n.softmax(0); n.mean(); n.var(); n.std(); n.prod(5); m - m; -m; n.norm() if 0 else n.mean(0); x & z; n << 1.5
x.bitwise_not(); t.lerp(x, z.float(), 0.5); x.matmul(y.float()); t.mm(x, v); t.bmm(x, x); t.dot(x, x); t.addmm(y, x, y)
t.einsum("ij,jk->ik", x, x); t.einsum("ij->k", x); t.tensordot(x, y, 2); t.where(n, x, z); x.masked_fill(n, 0.0)
n.masked_fill(m, 0.5) if 0 else x.masked_fill(x, 0.0); x.topk(9); x.permute(0, 0); x.permute(0); x.transpose(0, 5)
x.unflatten(0, (2, 2)) if 0 else x.flatten(1, 0); x.split([1, 1]); x.chunk(0); x.narrow(0, 2, 5); x.repeat(2)
x.roll((1, 2), 0); t.inverse(x); t.det(x); t.linalg.cholesky(x); t.linalg.solve(s, y)
n.gelu() if 0 else t.linalg.inv(n[:, :3]); t.diagonal(x, 0, 0, 0); t.diag(cube); t.trace(cube); v.tril(); x.fill_(1.0)
x.add_(1); x.zero_(); x[0] == x[0][5]; x.clamp(); x.float().half().int().div_(2); n.add_(0.5); n.mul_(1.5); x.mul_(cube)
t.full((-1,), 2.0); t.arange(0, 5, -1); t.zeros(2, -1); x.amax((0, 0)); t.zeros(0).max(); t.zeros(0, 3).amax(0)
t.zeros(3, 0).argmax(1); t.randint(5, 5, (2,)); t.multinomial(cube, 1); t.multinomial(q[0], 9); F.layer_norm(x, (3,))
F.layer_norm(x, (4,), y[0]); F.group_norm(img, 3); F.batch_norm(x[:1], None, None, training=True); F.conv2d(img, ker1)
F.conv2d(img, ker2[:, :2]); F.max_pool2d(img, 9); F.cross_entropy(x, c[:2]); F.cross_entropy(x, c.int())
F.scaled_dot_product_attention(x, y, y); F.linear(x, y); F.embedding(x, x); F.gelu(n); F.silu(n)
F.max_pool2d(img, 2, padding=2); F.avg_pool2d(v, 2); x.backward(); (x * 2).backward()
n.float().sum().backward() if 0 else n.requires_grad_(); float(x); bool(x); int(v); len(x.sum()); iter(x.sum())
x.item(); x[0.5]; x.to("nope")
"""
CALLS = [line.strip() for line in (LINES + FURTHER).replace("\n", ";").split(";") if line.strip()]


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    s = rng.uniform(-1, 1, (3, 3))
    return {
        "x": rng.uniform(-2, 2, (3, 4)), "z": rng.uniform(-2, 2, (3, 4)), "y": rng.uniform(-2, 2, (4, 5)),
        "u": rng.uniform(-0.9, 0.9, (3, 4)), "q": rng.uniform(0.2, 2, (3, 4)), "v": rng.uniform(0.5, 2, 4),
        "s": s @ s.T + 2 * np.eye(3), "cube": rng.uniform(-2, 2, (2, 3, 4)), "img": rng.uniform(-2, 2, (2, 4, 4, 4)),
        "ker1": rng.uniform(-1, 1, (2, 3, 3)), "ker2": rng.uniform(-1, 1, (2, 4, 3, 3)), "edges": np.linspace(-2, 2, 5),
        "n": rng.integers(-5, 6, (3, 4)), "p": rng.integers(1, 5, (3, 4)), "m": rng.random((3, 4)) < 0.5,
        "i": rng.integers(0, 3, (3, 3)), "j": rng.integers(0, 3, (1, 4)), "k": np.array([2, 0]), "c": np.array([2, 0, 1]),
    }  # fmt: skip


class _Functional:
    """`F` for GT; one_hot is in the namespace of tensors too."""

    def __getattr__(self, name: str) -> Any:
        return getattr(GF, name) if hasattr(GF, name) else getattr(gt, name)


def run(line: str, framework: str) -> tuple[Any, dict[str, Any]]:
    names: dict[str, Any] = {}
    for name, array in values().items():
        wants = array.dtype == np.float64 and name != "edges"
        if framework == "gt":
            names[name] = gt.tensor(array, requires_grad=wants)
        else:
            names[name] = torch.tensor(array, requires_grad=wants)
    spaces = {"t": gt, "F": _Functional()} if framework == "gt" else {"t": torch, "F": TF}
    return eval(line, {**spaces, **names}), names


def leaves(found: Any) -> list[Any]:
    if isinstance(found, (tuple, list)):
        return [leaf for f in found for leaf in leaves(f)]
    return [found]


def as_array(a: Any) -> np.ndarray:
    if isinstance(a, (torch.Tensor, gt.Tensor)):
        return a.detach().numpy()
    return np.asarray(a)


@pytest.fixture(scope="module", params=["numpy", "pytorch"], autouse=True)
def _cluster(request):
    with gt.testing.cluster(1, request.param):
        yield


@pytest.mark.parametrize("line", CALLS)
def test_a_line_of_pytorch_gives_the_same_in_gt(line: str):
    with torch.enable_grad():
        want, theirs = run(line, "torch")
    found, ours = run(line, "gt")
    first, second = leaves(found), leaves(want)
    assert len(first) == len(second)
    roots = []
    for a, b in zip(first, second):
        if not isinstance(b, torch.Tensor):
            assert str(a).removeprefix("gt.") == str(b).removeprefix("torch.") or tuple(a) == tuple(b)
            continue
        assert str(a.dtype).removeprefix("gt.") == str(b.dtype).removeprefix("torch.")
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(as_array(a), as_array(b), rtol=1e-5, atol=1e-6, equal_nan=True)
        assert a.requires_grad == b.requires_grad
        if b.requires_grad:
            roots.append((a, b))
    if not roots:
        return
    ones = torch.tensor(1.0, dtype=torch.float64)
    with derivatives():
        sum((b.double() * (b.detach().double().cos() + ones)).sum() for _, b in roots).backward()  # type: ignore
    total = sum(((a.double() * (a.detach().double().cos() + 1)).sum() for a, _ in roots[1:]),
                (roots[0][0].double() * (roots[0][0].detach().double().cos() + 1)).sum())  # fmt: skip
    total.backward()
    for name, b in theirs.items():
        if b.grad is not None and b.grad.abs().sum() > 0:
            assert ours[name].grad is not None, f"no gradient for {name}"
            np.testing.assert_allclose(as_array(ours[name].grad), as_array(b.grad), rtol=1e-4, atol=1e-6, err_msg=name)
        else:
            assert ours[name].grad is None or not np.abs(as_array(ours[name].grad)).sum() > 0, f"a gradient for {name}"


@pytest.mark.parametrize("line", [c for c in CHANGES.strip().split("\n") if c])
def test_changes_in_place_and_their_gradients_are_pytorchs(line: str):
    results = {}
    for framework in ("torch", "gt"):
        _, names = run("0", framework)
        space = {**names, "t": torch if framework == "torch" else gt}
        seen = []
        with torch.enable_grad():
            for step in line.split(";"):
                exec(step.strip(), space)
                seen.append((str(space["a"].dtype).split(".")[1], tuple(space["a"].shape), as_array(space["a"]).copy()))
            if space["a"].requires_grad:
                (space["a"] * space["a"]).sum().backward()
        grads = {n: as_array(v.grad) for n, v in names.items() if v.grad is not None}
        results[framework] = seen, {n: g for n, g in grads.items() if np.abs(g).sum() > 0}
    for (dtype, shape, found), (wdtype, wshape, want) in zip(results["gt"][0], results["torch"][0]):
        assert (dtype, shape) == (wdtype, wshape)
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-9)
    assert results["gt"][1].keys() == results["torch"][1].keys()
    for name, want in results["torch"][1].items():
        np.testing.assert_allclose(results["gt"][1][name], want, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("line", [c.strip() for c in REFUSED.replace("\n", ";").split(";") if c.strip()])
def test_a_line_that_pytorch_refuses_is_refused_before_anything_is_sent(line: str):
    with torch.enable_grad(), pytest.raises((RuntimeError, TypeError, ValueError, IndexError)):
        run(line, "torch")
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)) as refusal:
        run(line, "gt")
    assert not isinstance(refusal.value, gt.errors.GTError), "found out by a worker only"
