"""Updates of optimizers, a row each: parameter, gradient and state in, parameter and state out. Rates and step counts are
numbers, since they change from step to step. No update has a gradient."""

from __future__ import annotations

from functools import partial

from gt.ops import table
from gt.ops.rules import by_axis
from gt.ops.table import Kind, Operand, Rule, Values
from gt.spec import REPLICATE, Shard, Spec, float32, int64

P = Spec((3, 4), float32)
V = Spec((5,), float32)
SQUARES = Values(P, 0.0, 2.0)
SCALAR = Values(Spec((), float32), 0.1, 0.9)
ROWS, COLUMNS = Values(Spec((3, 1), float32), 0.1, 2.0), Values(Spec((1, 4), float32), 0.1, 2.0)


def _state(*taken: int, scalars: tuple[int, ...] = ()):
    """The outputs have the specs of these inputs, which all have the parameter's shape, except the 0-d ones among `scalars`;
    further tensors are returned too."""

    def rule(*operands: Operand, **_: object) -> tuple[Spec, ...]:
        for i in scalars:
            if not isinstance(operands[i], Spec) or operands[i].shape or operands[i].dtype.rank != 2:
                raise ValueError(f"operand {i} of this update: expected a 0-d floating-point tensor, got {operands[i]}")
        specs = [s for i, s in enumerate(operands) if isinstance(s, Spec) and i not in scalars]
        for s in specs:
            if s.shape != specs[0].shape or s.dtype.rank != 2:
                raise ValueError(f"an update of {specs[0]}: expected a gradient and state of that shape and dtype, got {s}")
        last = max(i for i in range(len(operands)) if not isinstance(operands[i], Spec))
        extra = tuple(s for s in operands[last + 1 :] if isinstance(s, Spec))
        return tuple(operands[i] for i in taken) + extra

    return rule


op = partial(table.op, shard=by_axis, updates=True)


def _decayed(p, g, lr, decay, decoupled, maximize):
    """Parameter and gradient after weight decay, which changes one of them."""
    g = -g if maximize else g
    if decay:
        if decoupled:
            p = p * (1.0 - lr * decay)
        else:
            g = g + p * decay
    return p, g


def _power(a, n):
    """A power of numbers. Of floats: a large power of an integer would occupy a worker for ever."""
    return (float(a) if type(a) is int else a) ** n


def _adam(xp, p, g, m, v, lr, b1, b2, eps, decay, step, *top, decoupled, maximize):
    p, g = _decayed(p, g, lr, decay, decoupled, maximize)
    m = m + (g - m) * (1.0 - b1)
    v = v * b2 + g * g * (1.0 - b2)
    largest = xp.maximum(top[0], v) if top else v
    p = p - (lr / (1.0 - _power(b1, step))) * m / (xp.sqrt(largest) / (1.0 - _power(b2, step)) ** 0.5 + eps)
    return (p, m, v, largest) if top else (p, m, v)


def _sgd(xp, p, g, lr, decay, *, maximize):
    g = -g if maximize else g
    return p - (g + p * decay if decay else g) * lr


def _sgd_rows_shape(p: Operand, rows: Operand, index: Operand, lr: Operand, *, maximize: bool) -> Spec:
    if not (isinstance(p, Spec) and isinstance(rows, Spec) and isinstance(index, Spec)) or not p.ndim or p.dtype.rank != 2:
        raise ValueError(f"an update of rows: expected a table, rows and their indices, got {p}, {rows} and {index}")
    want = Spec((index.numel, *p.shape[1:]), p.dtype)
    if rows != want or index.dtype is not int64:
        raise ValueError(f"an update of rows of {p}: expected {want} for int64 indices {index.shape}, got {rows}, {index}")
    return p


def _sgd_rows(xp, p, rows, index, lr, *, maximize):
    return xp.add_at(xp.copy(p), (xp.reshape(index, (-1,)),), rows * (lr if maximize else -lr))


def _sgd_rows_rules(kind: Kind) -> list[Rule]:
    """Any axis except that of the rows."""
    return [((Shard(i), Shard(i), REPLICATE, REPLICATE), (Shard(i),)) for i in range(1, kind.outs[0].ndim)]


def _sgd_momentum(xp, p, g, buffer, lr, decay, momentum, dampening, *, nesterov, maximize):
    g = -g if maximize else g
    g = g + p * decay if decay else g
    buffer = buffer * momentum + g * (1.0 - dampening)
    return p - (g + buffer * momentum if nesterov else buffer) * lr, buffer


def _rmsprop(xp, p, g, square, lr, alpha, eps, decay, momentum, *more, centered, maximize):
    """`more` holds the running mean if `centered`, then the buffer if there is momentum."""
    g = -g if maximize else g
    g = g + p * decay if decay else g
    square = square * alpha + g * g * (1.0 - alpha)
    state, spread = [], square
    if centered:
        mean = more[0] + (g - more[0]) * (1.0 - alpha)
        spread = square - mean * mean
        state.append(mean)
    step = g / (xp.sqrt(spread) + eps)
    if len(more) > len(state):
        step = more[-1] * momentum + step
        state.append(step)
    return (p - step * lr, square, *state)


def _adagrad(xp, p, g, total, lr, rate_decay, decay, eps, step, *, maximize):
    g = -g if maximize else g
    g = g + p * decay if decay else g
    total = total + g * g
    return p - (lr / (1.0 + (step - 1) * rate_decay)) * g / (xp.sqrt(total) + eps), total


def _lion(xp, p, g, m, lr, b1, b2, decay, *, maximize):
    g = -g if maximize else g
    p = p * (1.0 - lr * decay) if decay else p
    p = p - xp.sign(m * b1 + g * (1.0 - b1)) * lr
    return p, m * b2 + g * (1.0 - b2)


def _adadelta(xp, p, g, square, delta, lr, rho, eps, decay, *, maximize):
    g = -g if maximize else g
    g = g + p * decay if decay else g
    square = square * rho + g * g * (1.0 - rho)
    change = xp.sqrt(delta + eps) / xp.sqrt(square + eps) * g
    return p - change * lr, square, delta * rho + change * change * (1.0 - rho)


def _adamax(xp, p, g, m, largest, lr, b1, b2, eps, decay, step, *, maximize):
    g = -g if maximize else g
    g = g + p * decay if decay else g
    m = m + (g - m) * (1.0 - b1)
    largest = xp.maximum(largest * b2, xp.abs(g) + eps)
    return p - (lr / (1.0 - _power(b1, step))) * m / largest, m, largest


def _nesterov_momentum(b1, momentum_decay, step):
    """NAdam's momentum at a step: it increases towards `b1`."""
    return b1 * (1.0 - 0.5 * 0.96 ** (step * momentum_decay))


def _nadam_product(xp, product, b1, b2, momentum_decay, step):
    """The product of all momenta so far. `b2` is an operand because an optimizer's settings are passed together."""
    return product * _nesterov_momentum(b1, momentum_decay, step)


def _nadam(xp, p, g, m, v, product, lr, b1, b2, eps, decay, momentum_decay, step, *, decoupled, maximize):
    p, g = _decayed(p, g, lr, decay, decoupled, maximize)
    m = m + (g - m) * (1.0 - b1)
    v = v * b2 + g * g * (1.0 - b2)
    now, after = (_nesterov_momentum(b1, momentum_decay, t) for t in (step, step + 1))
    root = xp.sqrt(v / (1.0 - _power(b2, step))) + eps
    of_gradient, of_mean = (1.0 - now) / (1.0 - product), after / (1.0 - product * after)
    return p - lr * of_gradient * g / root - lr * of_mean * m / root, m, v


def _radam(xp, p, g, m, v, lr, b1, b2, eps, decay, step, *, decoupled, maximize):
    p, g = _decayed(p, g, lr, decay, decoupled, maximize)
    m = m + (g - m) * (1.0 - b1)
    v = v * b2 + g * g * (1.0 - b2)
    change = m * (lr / (1.0 - _power(b1, step)))
    most = 2.0 / (1.0 - b2) - 1.0
    length = most - 2.0 * step * _power(b2, step) / (1.0 - _power(b2, step))  # of the moving average v
    if length > 5.0:
        rectified = (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length)
        change = change * ((rectified * (1.0 - _power(b2, step))) ** 0.5 / (xp.sqrt(v) + eps))
    return p - change, m, v


def _rprop(xp, p, g, before, size, less, more, least, most, *, maximize):
    g = -g if maximize else g
    turn = g * before
    size = xp.clip(size * xp.where(turn > 0, more, xp.where(turn < 0, less, xp.ones_like(size))), least, most)
    g = xp.where(turn < 0, 0.0, g)
    return p - xp.sign(g) * size, g, size


def _asgd_rates(xp, eta, mu, lr, lambd, alpha, t0, step):
    """The rate and the weight of the next step."""
    counted = step - t0
    return (xp.zeros_like(eta) + lr / (1.0 + lambd * lr * step) ** alpha,
            xp.zeros_like(mu) + 1.0 / (counted if counted > 1.0 else 1.0))  # fmt: skip


def _asgd(xp, p, g, mean, eta, mu, lambd, decay, *, maximize):
    g = -g if maximize else g
    g = g + p * decay if decay else g
    p = p * (1.0 - lambd * eta) - g * eta
    return p, mean + (p - mean) * mu


def _factored_state(p: Spec, g: Spec, *operands: Operand, **_: object) -> tuple[Spec, ...]:
    """One variance for each row and column of a matrix, or one for each element."""
    state = [s for s in operands if isinstance(s, Spec)]
    lead = p.shape[:-2]
    want = [(*lead, p.shape[-2], 1), (*lead, 1, p.shape[-1])] if len(p.shape) > 1 else [p.shape]
    if g.shape != p.shape or [s.shape for s in state] != want or any(s.dtype.rank != 2 for s in (p, g, *state)):
        raise ValueError(
            f"an adafactor update of {p}: expected a gradient of that spec and variances of shapes {want}, got {g}, {state}"
        )
    return (p, *state)


def _root_mean_square(xp, a):
    return xp.sqrt(xp.mean(a * a, axis=tuple(range(len(a.shape))))) if a.shape else xp.abs(a)


def _adafactor(xp, p, g, lr, beta2_decay, d, decay, step, *state, eps1, eps2, maximize):
    g = -g if maximize else g
    fresh = _power(step, beta2_decay)  # the weight of this step's gradient
    scale = _root_mean_square(xp, p)
    rate = xp.maximum(scale, xp.zeros_like(scale) + eps2) * (lr if lr < step**-0.5 else step**-0.5)
    if decay:
        p = p * (1.0 - lr * decay)
    square = g * g
    if len(state) == 2:
        rows = state[0] + (xp.mean(square, axis=-1, keepdims=True) - state[0]) * fresh
        columns = state[1] + (xp.mean(square, axis=-2, keepdims=True) - state[1]) * fresh
        mean = xp.mean(rows, axis=-2, keepdims=True)
        variance, state = rows @ columns / xp.maximum(mean, xp.zeros_like(mean) + eps1), (rows, columns)
    else:
        variance = state[0] + (square - state[0]) * fresh
        state = (variance,)
    change = g / xp.sqrt(xp.maximum(variance, xp.zeros_like(variance) + eps1 * eps1))
    size = _root_mean_square(xp, change) / d
    return (p - change * (rate / xp.maximum(size, xp.zeros_like(size) + 1.0)), *state)


ADAM = (P, P, P, SQUARES, 1e-3, 0.9, 0.99, 1e-8, 0.1, 3)

op("adam", shape=_state(0, 2, 3), kernel=_adam,
   tries=((ADAM, {"decoupled": False, "maximize": False}), (ADAM, {"decoupled": True, "maximize": True}),
          ((*ADAM, SQUARES), {"decoupled": True, "maximize": False})))  # fmt: skip
op("sgd", shape=_state(0), kernel=_sgd,
   tries=(((P, P, 0.1, 0.0), {"maximize": False}), ((P, P, 0.1, 0.01), {"maximize": True})))  # fmt: skip
table.op("sgd_rows", shape=_sgd_rows_shape, kernel=_sgd_rows, shard=_sgd_rows_rules, updates=True, reads=2,
   tries=(((P, Spec((2, 4), float32), Values(Spec((1, 2), int64), 0, 3), 0.1), {"maximize": False}),
          ((P, Spec((6, 4), float32), Values(Spec((2, 3), int64), 0, 3), 0.1), {"maximize": True})))  # fmt: skip
op("sgd_momentum", shape=_state(0, 2), kernel=_sgd_momentum,
   tries=(((P, P, P, 0.1, 0.01, 0.9, 0.5), {"nesterov": False, "maximize": False}),
          ((P, P, P, 0.1, 0.01, 0.9, 0.0), {"nesterov": True, "maximize": True})))  # fmt: skip
op("rmsprop", shape=_state(0, 2), kernel=_rmsprop,
   tries=(((P, P, SQUARES, 0.01, 0.9, 1e-6, 0.1, 0.0), {"centered": False, "maximize": False}),
          ((P, P, SQUARES, 0.01, 0.9, 1e-6, 0.0, 0.5, P), {"centered": False, "maximize": True}),
          ((P, P, Values(P, 5.0, 6.0), 0.01, 0.9, 1e-6, 0.0, 0.5, P, P), {"centered": True, "maximize": False})))  # fmt: skip
op("adagrad", shape=_state(0, 2), kernel=_adagrad,
   tries=(((P, P, SQUARES, 0.1, 0.01, 0.1, 1e-10, 3), {"maximize": False}),))  # fmt: skip
op("lion", shape=_state(0, 2), kernel=_lion,
   tries=(((P, P, P, 1e-3, 0.9, 0.99, 0.1), {"maximize": False}),))  # fmt: skip
op("adadelta", shape=_state(0, 2, 3), kernel=_adadelta,
   tries=(((P, P, SQUARES, SQUARES, 0.5, 0.9, 1e-6, 0.1), {"maximize": False}),))  # fmt: skip
op("adamax", shape=_state(0, 2, 3), kernel=_adamax,
   tries=(((P, P, P, SQUARES, 0.1, 0.9, 0.99, 1e-8, 0.1, 3), {"maximize": True}),))  # fmt: skip
op("nadam_product", shape=_state(0), kernel=_nadam_product, shard=None, tries=(((SCALAR, 0.9, 0.99, 4e-3, 3), {}),))
op("nadam", shape=_state(0, 2, 3, scalars=(4,)), kernel=_nadam,
   tries=(((P, P, P, SQUARES, SCALAR, 0.1, 0.9, 0.99, 1e-8, 0.1, 4e-3, 3), {"decoupled": False, "maximize": False}),
          ((P, P, P, SQUARES, SCALAR, 0.1, 0.9, 0.99, 1e-8, 0.1, 4e-3, 3), {"decoupled": True, "maximize": True})))  # fmt: skip
op("radam", shape=_state(0, 2, 3), kernel=_radam,
   tries=(((*ADAM[:-1], 2), {"decoupled": False, "maximize": False}),
          ((*ADAM[:-1], 20), {"decoupled": True, "maximize": True})))  # fmt: skip
op("rprop", shape=_state(0, 2, 3), kernel=_rprop,
   tries=(((P, P, P, SQUARES, 0.5, 1.2, 1e-6, 1.5), {"maximize": False}),))  # fmt: skip
op("asgd_rates", shape=_state(0, 1), kernel=_asgd_rates, shard=None,
   tries=(((SCALAR, SCALAR, 0.1, 1e-4, 0.75, 2.0, 5), {}),))  # fmt: skip
op("asgd", shape=_state(0, 2, scalars=(3, 4)), kernel=_asgd,
   tries=(((P, P, P, SCALAR, SCALAR, 1e-4, 0.1), {"maximize": False}),))  # fmt: skip
table.op("adafactor", shape=_factored_state, kernel=_adafactor, updates=True,
   tries=(((P, P, 0.1, -0.8, 1.0, 0.1, 3, ROWS, COLUMNS), {"eps1": 1e-7, "eps2": 1e-3, "maximize": False}),
          ((V, V, 0.1, -0.8, 1.5, 0.0, 3, Values(V, 0.0, 2.0)), {"eps1": 1e-7, "eps2": 1e-3, "maximize": True})))  # fmt: skip
