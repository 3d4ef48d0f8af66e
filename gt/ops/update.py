"""What optimizers do to a parameter, a row each: parameter, gradient and state in, parameter and state out. Rates and step
counts are numbers, since they change from step to step. None has a gradient."""

from __future__ import annotations

from functools import partial

from gt.ops import table
from gt.ops.rules import by_axis
from gt.ops.table import Operand, Values
from gt.spec import Spec, float32

P = Spec((3, 4), float32)
SQUARES = Values(P, 0.0, 2.0)


def _state(*tensors: int):
    """The outputs have the specs of these inputs, which are all of the parameter's shape; further tensors come back too."""

    def rule(*operands: Operand, **_: object) -> tuple[Spec, ...]:
        specs = [s for s in operands if isinstance(s, Spec)]
        for s in specs:
            if s.shape != specs[0].shape or s.dtype.rank != 2:
                raise ValueError(f"an update of {specs[0]} wants gradient and state like it, not {s}")
        last = max(i for i in range(len(operands)) if not isinstance(operands[i], Spec))
        extra = tuple(s for s in operands[last + 1 :] if isinstance(s, Spec))
        return tuple(operands[i] for i in tensors) + extra

    return rule


op = partial(table.op, shard=by_axis, updates=True)


def _adam(xp, p, g, m, v, lr, b1, b2, eps, decay, step, *top, decoupled, maximize):
    g = -g if maximize else g
    if decay:
        if decoupled:
            p = p * (1.0 - lr * decay)
        else:
            g = g + p * decay
    m = m + (g - m) * (1.0 - b1)
    v = v * b2 + g * g * (1.0 - b2)
    largest = xp.maximum(top[0], v) if top else v
    p = p - (lr / (1.0 - b1**step)) * m / (xp.sqrt(largest) / (1.0 - b2**step) ** 0.5 + eps)
    return (p, m, v, largest) if top else (p, m, v)


def _sgd(xp, p, g, lr, decay, *, maximize):
    g = -g if maximize else g
    return p - (g + p * decay if decay else g) * lr


def _sgd_momentum(xp, p, g, buffer, lr, decay, momentum, dampening, *, nesterov, maximize):
    g = -g if maximize else g
    g = g + p * decay if decay else g
    buffer = buffer * momentum + g * (1.0 - dampening)
    return p - (g + buffer * momentum if nesterov else buffer) * lr, buffer


def _rmsprop(xp, p, g, square, lr, alpha, eps, decay, momentum, *more, centered, maximize):
    """`more` holds the running mean where it is `centered`, then the buffer where there is momentum."""
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


ADAM = (P, P, P, SQUARES, 1e-3, 0.9, 0.99, 1e-8, 0.1, 3)

op("adam", shape=_state(0, 2, 3), kernel=_adam,
   tries=((ADAM, {"decoupled": False, "maximize": False}), (ADAM, {"decoupled": True, "maximize": True}),
          ((*ADAM, SQUARES), {"decoupled": True, "maximize": False})))  # fmt: skip
op("sgd", shape=_state(0), kernel=_sgd,
   tries=(((P, P, 0.1, 0.0), {"maximize": False}), ((P, P, 0.1, 0.01), {"maximize": True})))  # fmt: skip
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
