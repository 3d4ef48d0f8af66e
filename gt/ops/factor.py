"""Factorisations other than those of linalg.py and lu.py: eigenvectors of general square matrices, the pseudo-inverse, Cholesky
with a status, the Bunch-Kaufman factorisation of symmetric matrices, and Householder reflections."""

from __future__ import annotations

from gt.ops.estimate import cubic, iterative
from gt.ops.linalg import ROOT, STACK, TALL, WELL, S, _batch, _cholesky_grad, _floats, _square, finite
from gt.ops.rules import broadcast
from gt.ops.table import Kind, Rule, Values, op
from gt.spec import REPLICATE, Shard, Spec, float32, int32


def _eig(a: Spec) -> tuple[Spec, Spec]:
    _square("eig")(a)
    return Spec(a.shape[:-1], a.dtype.to_complex()), Spec(a.shape, a.dtype.to_complex())


def _eig_pull(gs, ys, ins):
    """In the basis of the eigenvectors; the component that changes their length is removed."""
    (gw, gv), (w, v) = gs, ys
    axes = (v.ndim - 2, v.ndim - 1)
    gap = (w.unsqueeze(-2) - w.unsqueeze(-1)).conj()
    none = gap == 0
    vh = v.mH
    turned = vh @ gv
    along = turned.op("diagonal", offset=0, axes=axes).real
    turned = turned - (vh @ v) * along.unsqueeze(-2)
    middle = none.pick(0.0, turned / none.pick(1.0, gap)) + gw.op("diagonal_grad", shape=v.shape, offset=0, axes=axes)
    return [vh.op("solve", middle @ vh, vector=False)]


def _pinv(a: Spec, atol: type, rtol: type, *, hermitian: bool) -> Spec:
    _floats("pinv", a)
    if hermitian:
        _square("pinv of a Hermitian matrix")(a)
    *lead, m, n = a.shape
    return Spec((*lead, n, m), a.dtype)


def _adjoint(xp, a):
    turned = xp.swapaxes(a, -1, -2)
    return xp.conj_physical(turned) if a.dtype in (xp.complex64, xp.complex128) else turned


def _pseudo_inverse(xp, a, atol, rtol, *, hermitian):
    m, n = a.shape[-2:]
    if not Spec(tuple(a.shape)).numel:
        return xp.zeros((*a.shape[:-2], n, m), dtype=a.dtype)
    finite(xp, a)
    if hermitian:
        s, u = xp.linalg.eigh(a)
        vh, size = _adjoint(xp, u), xp.abs(s)
    else:
        u, s, vh = xp.linalg.svd(a, full_matrices=False)
        size = s
    least = xp.max(size, axis=(size.ndim - 1,), keepdims=True) * rtol
    keep = (size > least) & (size > atol)
    inverted = xp.where(keep, 1.0 / xp.where(keep, s, 1.0 + 0.0 * s), 0.0 * s)
    return xp.matmul(_adjoint(xp, vh) * inverted[..., None, :], _adjoint(xp, u))


def _pinv_grad(g, y, a, hermitian):
    """Golub and Pereyra (1973): without singular vectors, so that equal singular values are harmless."""
    gh, yh = g.mH, y.mH
    if a.shape[-2] <= a.shape[-1]:
        k = gh @ y
        kyh = k @ yh
        return kyh - (y @ k).mH - (a @ y) @ kyh + (yh @ y) @ (gh - k @ a)
    k = y @ gh
    yhk = yh @ k
    return yhk - (k @ y).mH + (gh - a @ k) @ y @ yh - (yhk @ y) @ a


def _numbers_whole(kind: Kind) -> list[Rule]:
    """Matrices are independent; numbers are replicated."""
    rest = (REPLICATE,) * (len(kind.ins) - 1)
    return [((Shard(i), *rest), (Shard(i),) * len(kind.outs)) for i in range(kind.ins[0].ndim - 2)]


def _stacked(xp, a):
    return xp.reshape(a, (Spec(tuple(a.shape[:-2])).numel, *a.shape[-2:]))


def _triangle(a: Spec) -> tuple[Spec, Spec]:
    _square("cholesky_ex")(a)
    return a, Spec(a.shape[:-2], int32)


def _cholesky(xp, a):
    """Column by column; the second result is the order, from 1, of the first minor that is not positive."""
    out = xp.copy(_stacked(xp, a))
    info = xp.zeros((out.shape[0],), dtype=xp.int32)
    for b in range(out.shape[0]):
        for k in range(a.shape[-1]):
            row = out[b, k, :k]
            root = xp.real(out[b, k, k]) - xp.sum(xp.real(row * xp.conj(row)), axis=(0,))
            if not root > 0:
                info[b] = k + 1
                break
            out[b, k, k] = xp.sqrt(root)
            below = out[b, k + 1 :, k] - xp.matmul(out[b, k + 1 :, :k], xp.conj(row))
            out[b, k + 1 :, k] = below / out[b, k, k]
    return xp.tril(xp.reshape(out, tuple(a.shape))), xp.reshape(info, tuple(a.shape[:-2]))


def _cholesky_pull(gs, ys, ins):
    return [_cholesky_grad(gs[0], ys[0])]


def _reflected(a: Spec) -> tuple[Spec, Spec]:
    _floats("geqrf", a)
    return a, Spec((*a.shape[:-2], min(a.shape[-2:])), a.dtype)


def _reflections(xp, a):
    packed, tau = xp.linalg.qr(a, "raw")
    return xp.swapaxes(packed, -1, -2), tau


op("eig", compute_seconds=iterative, complex="own", shape=_eig, shard=_batch, keep="outputs", grad=_eig_pull,
   tries=(WELL, ((STACK,), {})),
   kernel=lambda xp, a: tuple(xp.linalg.eig(finite(xp, a))))  # fmt: skip
op("pinv", compute_seconds=iterative, complex="own", shape=_pinv, shard=_numbers_whole, grad=(_pinv_grad, None, None),
   tries=(((TALL, 0.0, 1e-6), {"hermitian": False}), ((Spec((2, 4), float32), 0.0, 1e-6), {"hermitian": False}),
          ((ROOT, 0.0, 1e-6), {"hermitian": True})),
   kernel=_pseudo_inverse)  # fmt: skip
op("cholesky_ex", compute_seconds=cubic,
   unchecked="y1", complex="own", shape=_triangle, shard=_batch, keep="outputs", grad=_cholesky_pull,
   tries=(WELL, ((STACK,), {})), kernel=_cholesky)  # fmt: skip
op("geqrf", compute_seconds=cubic,
   complex="own", shape=_reflected, shard=_batch, tries=(((S,), {}), ((TALL,), {}), ((Spec((2, 4), float32),), {})),
   kernel=_reflections)  # fmt: skip


def _packed(a: Spec, *, hermitian: bool) -> tuple[Spec, Spec, Spec]:
    _square("ldl_factor")(a)
    return a, Spec(a.shape[:-1], int32), Spec(a.shape[:-2], int32)


ALPHA = (1.0 + 17.0**0.5) / 8.0  # Bunch and Kaufman's bound of a pivot's size relative to the elements below it


def _size(xp, a):
    complex_ = a.dtype in (xp.complex64, xp.complex128)
    return xp.abs(xp.real(a)) + xp.abs(xp.imag(a)) if complex_ else xp.abs(a)


def _pivot(xp, m, k, n, hermitian):
    """The row of the k-th pivot, and whether it is a block of two columns."""
    here = float(xp.abs(xp.real(m[k, k])) if hermitian else _size(xp, m[k, k]))
    if k + 1 >= n:
        return k, 1, here == 0
    below = _size(xp, m[k + 1 :, k])
    at = k + 1 + int(xp.argmax(below, axis=0))
    most = float(below[at - k - 1])
    if max(here, most) == 0:
        return k, 1, True
    if here >= ALPHA * most:
        return k, 1, False
    across = float(xp.max(_size(xp, m[at, k:at]), axis=(0,)))
    if at + 1 < n:
        across = max(across, float(xp.max(_size(xp, m[at + 1 :, at]), axis=(0,))))
    if here >= ALPHA * most * (most / across):
        return k, 1, False
    there = float(xp.abs(xp.real(m[at, at])) if hermitian else _size(xp, m[at, at]))
    return (at, 1, False) if there >= ALPHA * across else (at, 2, False)


def _exchange(xp, m, first, at, n, turn):
    """Exchange rows and columns of the lower triangle, within the part that is not factorised yet."""
    m[at + 1 :, [first, at]] = m[at + 1 :, [at, first]]
    between = xp.copy(m[first + 1 : at, first])
    m[first + 1 : at, first] = turn(m[at, first + 1 : at])
    m[at, first + 1 : at] = turn(between)
    corner = turn(m[at, first])
    m[at, first] = corner
    diagonal = xp.copy(m[first, first])
    m[first, first] = m[at, at]
    m[at, at] = diagonal


def _eliminate(xp, m, k, step, turn):
    """The remainder after the factorised columns, and these columns in terms of their pivots."""
    rest = slice(k + step, None)
    block = xp.copy(m[k : k + step, k : k + step])
    if step == 2:
        block[0, 1] = turn(block[1, 0])
    columns = xp.copy(m[rest, k : k + step])
    done = xp.swapaxes(xp.linalg.solve(xp.swapaxes(block, 0, 1), xp.swapaxes(columns, 0, 1)), 0, 1)
    m[rest, rest] = m[rest, rest] - xp.tril(xp.matmul(done, turn(xp.swapaxes(columns, 0, 1))))
    m[rest, k : k + step] = done


def _bunch_kaufman(xp, a, *, hermitian):
    """As LAPACK's sytf2 and hetf2 for lower triangles; a pivot of two columns is negative."""
    out = xp.tril(xp.copy(_stacked(xp, a)))
    n = a.shape[-1]
    pivots = xp.zeros((out.shape[0], n), dtype=xp.int32)
    info = xp.zeros((out.shape[0],), dtype=xp.int32)
    turn = xp.conj if hermitian and a.dtype in (xp.complex64, xp.complex128) else lambda t: t
    for b in range(out.shape[0]):
        m, k = out[b], 0
        while k < n:
            at, step, none = _pivot(xp, m, k, n, hermitian)
            if none:
                info[b] = info[b] if info[b] else k + 1
                pivots[b, k] = k + 1
                k += 1
                continue
            first = k + step - 1
            if at != first:
                _exchange(xp, m, first, at, n, turn)
                if step == 2:
                    swapped = xp.copy(m[first, k])
                    m[first, k], m[at, k] = m[at, k], swapped
            if k + step < n:
                _eliminate(xp, m, k, step, turn)
            pivots[b, k : k + step] = at + 1 if step == 1 else -(at + 1)
            k += step
    return (xp.reshape(out, tuple(a.shape)), xp.reshape(pivots, tuple(a.shape[:-1])),
            xp.reshape(info, tuple(a.shape[:-2])))  # fmt: skip


def _ldl_solved(a: Spec, pivots: Spec, b: Spec, *, hermitian: bool) -> Spec:
    _square("ldl_solve")(a)
    if pivots.shape != a.shape[:-1] or b.ndim < 2 or b.shape[-2] != a.shape[-1] or b.dtype is not a.dtype:
        raise ValueError(
            f"cannot solve {a} with pivots {pivots} for {b}: expected pivots {a.shape[:-1]} and rows {a.shape[-1]}"
        )
    return Spec((*broadcast(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), a.dtype)


def _ldl_solve(xp, a, pivots, b, *, hermitian):
    """The matrix is multiplied out, which takes as long as solving, and solved for."""
    n = a.shape[-1]
    flat, order = xp.copy(_stacked(xp, a)), xp.reshape(pivots, (Spec(tuple(pivots.shape[:-1])).numel, n))
    whole = xp.copy(flat)
    turn = xp.conj if hermitian and a.dtype in (xp.complex64, xp.complex128) else lambda t: t
    for at in range(flat.shape[0]):
        k, starts = 0, []
        while k < n:
            step = 1 if int(order[at, k]) > 0 else 2
            starts.append((k, step))
            k += step
        m = 0 * flat[at]
        for k, step in reversed(starts):
            block = xp.copy(flat[at, k : k + step, k : k + step])
            if step == 2:
                block[0, 1] = turn(block[1, 0])
            low = flat[at, k + step :, k : k + step]
            column = xp.matmul(low, block)
            m[k + step :, k + step :] = m[k + step :, k + step :] + xp.matmul(column, turn(xp.swapaxes(low, 0, 1)))
            m[k + step :, k : k + step] = column
            m[k : k + step, k + step :] = turn(xp.swapaxes(column, 0, 1))
            m[k : k + step, k : k + step] = block
            first, other = k + step - 1, abs(int(order[at, k])) - 1
            if first != other:
                m[[first, other]] = m[[other, first]]
                m[:, [first, other]] = m[:, [other, first]]
        whole[at] = m
    return xp.linalg.solve(xp.reshape(whole, tuple(a.shape)), b)


def _batch_of_three(kind: Kind) -> list[Rule]:
    a, _, b = kind.ins
    lead = a.ndim - 2 if a.shape[:-2] == b.shape[:-2] else 0
    return [((Shard(i),) * 3, (Shard(i),)) for i in range(lead)]


ORDER = Values(Spec((2, 3), int32), 3, 4)

op("ldl_factor", compute_seconds=cubic, complex="own", shape=_packed, shard=_batch,
   tries=(((S,), {"hermitian": False}), ((STACK,), {"hermitian": True}), ((Spec((2, 4, 4), float32),), {"hermitian": False})),
   kernel=_bunch_kaufman)  # fmt: skip
op("ldl_solve", compute_seconds=cubic, complex="own", shape=_ldl_solved, shard=_batch_of_three,
   tries=(((Values(Spec((2, 3, 3), float32), 0.5, 2.0), ORDER, Spec((2, 3, 2), float32)), {"hermitian": False}),),
   kernel=_ldl_solve)  # fmt: skip
