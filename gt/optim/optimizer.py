"""What optimizers share: parameter groups, state, and updates that do not go on the tape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.scope import no_grad
from gt.client.session import here


class Optimizer:
    """`step()` gives each parameter that has a gradient to `update`, which returns the parameter's new value."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        given = list(params)
        if not given:
            raise ValueError("an optimizer wants at least one parameter")
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"an optimizer wants tensors, not {type(p).__name__}")
        self.param_groups.append({**self.defaults, **group, "params": params})

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        raise NotImplementedError

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        with no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.data = self.update(p, p.grad, self.state.setdefault(p, {}), group).data
            here().session.mark()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None
