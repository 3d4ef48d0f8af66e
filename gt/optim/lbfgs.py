"""L-BFGS: a quasi-Newton method that calls its closure several times a step, with a line search that meets the strong Wolfe
conditions where it is asked for. Loss and slopes are read during a step, so steps are neither asynchronous nor captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.join import cat
from gt.client.grad_mode import enable_grad, no_grad
from gt.optim.optimizer import Optimizer, dense, rate


class Point(NamedTuple):
    """A point of the line search: its distance, the loss, the gradient and the slope along the line there."""

    t: float
    loss: float
    grad: Tensor
    slope: float


class LBFGS(Optimizer):
    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise RuntimeError(f"no line search {line_search_fn!r}: known are None and 'strong_wolfe'")
        max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, dict(lr=lr, max_iter=max_iter, max_eval=max_eval, tolerance_grad=tolerance_grad,
                                      tolerance_change=tolerance_change, history_size=history_size,
                                      line_search_fn=line_search_fn))  # fmt: skip
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS takes one parameter group: its steps are of all parameters together")

    @property
    def _params(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    def _flat_gradient(self) -> Tensor:
        return cat([full_like(p, 0.0).reshape(-1) if p.grad is None else dense(p.grad).reshape(-1) for p in self._params])

    def _put(self, values: list[Tensor], t: float = 0.0, direction: Tensor | None = None) -> None:
        """Set the parameters to these values, plus `t` times a direction if given."""
        at = 0
        for p, value in zip(self._params, values):
            size = p.numel()
            move = None if direction is None else direction[at : at + size].reshape(p.shape)
            p.copy_(value if move is None else value + move * t)
            at += size

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Minimise along up to `max_iter` directions. The closure computes the loss and its gradients."""
        if closure is None:
            raise TypeError("LBFGS.step() takes a closure that computes the loss and its gradients")
        with no_grad():
            return self._minimise(closure)

    def _minimise(self, closure: Callable[[], Any]) -> Any:
        group, state = self.param_groups[0], self.state.setdefault(self._params[0], {})
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        evaluate = _counted(closure, state)
        first = evaluate()
        loss, grad = float(first), self._flat_gradient()
        largest = float(grad.abs().max())
        iterations, start = 0, state["func_evals"] - 1
        while largest > group["tolerance_grad"] and iterations < group["max_iter"]:
            iterations += 1
            state["n_iter"] += 1
            direction = _direction(grad, state, group["history_size"])
            before = loss
            # the first step is short, as the curvature is unknown
            t = min(1.0, 1.0 / float(grad.abs().sum())) * group["lr"] if state["n_iter"] == 1 else group["lr"]
            state.update(t=t, prev_loss=before)
            slope = float((grad * direction).sum())
            if slope > -group["tolerance_change"]:
                break
            left = group["max_eval"] - (state["func_evals"] - start)
            last = iterations == group["max_iter"]
            loss, grad, t = self._along(evaluate, Point(0.0, loss, grad, slope), direction, t, left, last)
            state["t"] = t
            largest = float(grad.abs().max())
            if state["func_evals"] - start >= group["max_eval"] or largest <= group["tolerance_grad"]:
                break
            if (
                float((direction * t).abs().max()) <= group["tolerance_change"]
                or abs(loss - before) < group["tolerance_change"]
            ):
                break
        return first

    def _along(
        self, evaluate: Callable[[], Any], start: Point, direction: Tensor, t: float, left: int, last: bool
    ) -> tuple[float, Tensor, float]:
        """Move the parameters along a direction; returns loss, gradient and length of the step, after at most `left`
        evaluations. Without a search the end of the `last` direction is not evaluated, as it would not be used."""
        group, origin = self.param_groups[0], [p.clone() for p in self._params]

        def at(t: float) -> Point:
            self._put(origin, t, direction)
            loss, grad = float(evaluate()), self._flat_gradient()
            return Point(t, loss, grad, float((grad * direction).sum()))

        if group["line_search_fn"] == "strong_wolfe":
            found = strong_wolfe(at, start, t, float(direction.abs().max()), group["tolerance_change"], left)
            self._put(origin, found.t, direction)
            return found.loss, found.grad, found.t
        if last:
            self._put(origin, t, direction)
            return start.loss, start.grad, t
        found = at(t)
        return found.loss, found.grad, t


def _counted(closure: Callable[[], Any], state: dict[str, Any]) -> Callable[[], Any]:
    def evaluate() -> Any:
        with enable_grad():
            found = closure()
        state["func_evals"] += 1
        return found

    return evaluate


def _direction(grad: Tensor, state: dict[str, Any], history: int) -> Tensor:
    """The next direction: the gradient times the inverse Hessian estimated from earlier steps."""
    if "d" not in state:
        state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0, d=-grad, prev_flat_grad=grad)
        return state["d"]
    change, moved = grad - state["prev_flat_grad"], state["d"] * state["t"]
    curvature = float((change * moved).sum())
    if curvature > 1e-10:
        for name, value in (("old_dirs", change), ("old_stps", moved), ("ro", 1.0 / curvature)):
            state[name] = [*state[name], value][-history:]
        state["H_diag"] = curvature / float((change * change).sum())
    q, weights = -grad, []
    pairs = list(zip(state["old_dirs"], state["old_stps"], state["ro"]))
    for y, s, ro in reversed(pairs):
        weights.append((s * q).sum() * ro)
        q = q - y * weights[-1]
    q = q * state["H_diag"]
    for (y, s, ro), weight in zip(pairs, reversed(weights)):
        q = q + s * (weight - (y * q).sum() * ro)
    state.update(d=q, prev_flat_grad=grad)
    return q


def _cubic(a: Point, b: Point, low: float | None = None, high: float | None = None) -> float:
    """The minimum, within bounds, of the cubic through two points with their slopes."""
    if low is None or high is None:
        low, high = min(a.t, b.t), max(a.t, b.t)
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if square < 0:
        return (low + high) / 2.0
    d2 = square**0.5
    if a.t <= b.t:
        found = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    else:
        found = a.t - (a.t - b.t) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2 * d2))
    return min(max(found, low), high)


DECREASE, CURVATURE = 1e-4, 0.9  # the constants of the Wolfe conditions


def strong_wolfe(at: Callable[[float], Point], start: Point, t: float, largest: float, least: float, left: int) -> Point:
    """A point that meets the strong Wolfe conditions, or the best point found."""

    def too_high(p: Point) -> bool:
        return p.loss > start.loss + DECREASE * p.t * start.slope

    def flat(p: Point) -> bool:
        return abs(p.slope) <= -CURVATURE * start.slope

    before, now, tries = start, at(t), 0
    bracket: list[Point] = []
    while tries < left:
        if too_high(now) or (tries > 1 and now.loss >= before.loss):
            bracket = [before, now]
            break
        if flat(now):
            return now
        if now.slope >= 0:
            bracket = [before, now]
            break
        low, high = now.t + 0.01 * (now.t - before.t), now.t * 10
        t = _cubic(before, now, low, high)
        before, now = now, at(t)
        tries += 1
    return _zoom(at, bracket or [start, now], left - tries, largest, least, too_high, flat)


def _zoom(
    at: Callable[[float], Point], bracket: list[Point], left: int, largest: float, least: float,
    too_high: Callable[[Point], bool], flat: Callable[[Point], bool],
) -> Point:  # fmt: skip
    """Narrow a bracket that contains a point with the Wolfe conditions."""
    stuck = False
    low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
    while left > 0 and abs(bracket[1].t - bracket[0].t) * largest >= least:
        t = _cubic(bracket[0], bracket[1])
        near, far = min(p.t for p in bracket), max(p.t for p in bracket)
        edge = 0.1 * (far - near)
        if min(far - t, t - near) < edge:  # too near an end of the bracket
            if stuck or t >= far or t <= near:
                t = far - edge if abs(t - far) < abs(t - near) else near + edge
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        found = at(t)
        left -= 1
        if too_high(found) or found.loss >= bracket[low].loss:
            bracket[high] = found
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        if flat(found):
            bracket[low] = found
            break
        if found.slope * (bracket[high].t - bracket[low].t) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = found
    return bracket[low]
