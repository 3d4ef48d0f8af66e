"""Gradients that float16 would round to zero, kept by scaling the loss up and the gradients down again."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.join import stack
from gt.client.grad_mode import no_grad
from gt.client.writes import overwrite


class GradScaler:
    """`scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()`.

    A step whose gradients are not all finite is left out and the scale halved; after many that are, it is doubled.
    `step` reads one number, to know which.
    """

    def __init__(
        self, device: Any = None, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if growth_factor <= 1.0 or not 0.0 < backoff_factor < 1.0:
            raise ValueError(
                f"expected growth_factor above 1 and backoff_factor between 0 and 1, got {growth_factor} and {backoff_factor}"
            )
        self._scale, self._growth, self._backoff, self._interval = init_scale, growth_factor, backoff_factor, growth_interval
        self._enabled, self._steps = enabled, 0
        self._found: dict[int, bool] = {}  # by optimizer: whether its gradients, unscaled, were found to be infinite or nan
        self._stepped: set[int] = set()

    def is_enabled(self) -> bool:
        return self._enabled

    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """A loss, or several, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        return type(outputs)(self.scale(o) for o in outputs)

    @no_grad()
    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients by the scale, to look at them or clip them before the step."""
        if not self._enabled:
            return
        if id(optimizer) in self._found:
            raise RuntimeError("the gradients of this optimizer have been unscaled since the last update()")
        finite = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    values: Any = p.grad if isinstance(p.grad, Tensor) else p.grad.parts[1]
                    overwrite(values, (values * (1.0 / self._scale)).handle)
                    finite.append(values.isfinite().all())
        if not finite:
            raise RuntimeError("none of the optimizer's parameters has a gradient")
        self._found[id(optimizer)] = not stack(finite).all().item()

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step, unless a gradient is infinite or nan."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has been called for this optimizer since the last update()")
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return None if self._found[id(optimizer)] else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | None = None) -> None:
        """Choose the next scale by how the last steps went."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            if not self._found:
                raise RuntimeError("update(): expected a call of step() or unscale_() before it")
            if any(self._found.values()):
                self._scale, self._steps = self._scale * self._backoff, 0
            else:
                self._steps += 1
                if self._steps == self._interval:
                    self._scale, self._steps = self._scale * self._growth, 0
        self._found.clear()
        self._stepped.clear()

    def get_growth_factor(self) -> float:
        return self._growth

    def set_growth_factor(self, new_factor: float) -> None:
        self._growth = new_factor

    def get_backoff_factor(self) -> float:
        return self._backoff

    def set_backoff_factor(self, new_factor: float) -> None:
        self._backoff = new_factor

    def get_growth_interval(self) -> int:
        return self._interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """In PyTorch's form."""
        if not self._enabled:
            return {}
        return {"scale": self._scale, "growth_factor": self._growth, "backoff_factor": self._backoff,
                "growth_interval": self._interval, "_growth_tracker": self._steps}  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._enabled:
            return
        self._scale, self._growth = float(state_dict["scale"]), float(state_dict["growth_factor"])
        self._backoff, self._interval = float(state_dict["backoff_factor"]), int(state_dict["growth_interval"])
        self._steps = int(state_dict["_growth_tracker"])
