"""The base class of optimizers: parameter groups, state that can be saved, and updates off the tape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from gt.client.autograd import Tensor
from gt.client.capture_notes import CapturedSetting
from gt.client.foreach import foreach, overwrite_all
from gt.client.functions.create import tensor
from gt.client.functions.hooks import Hook
from gt.client.functions.sparse import SparseTensor
from gt.client.grad_mode import enable_grad
from gt.client.here import here
from gt.client.scope import HERE
from gt.client.user_lines import origin
from gt.client.views import RAW_GRAD
from gt.client.writes import overwrite
from gt.ops.table import TABLE

States = list[dict[str, Any]]


class Optimizer:
    """`step()` calls `update_many` with the parameters that have gradients, or `update` with each, which returns its new value.
    State tensors stay the same variables, as in PyTorch: a step sets their values."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(f"{type(self).__name__} takes a list of parameters, not a tensor: write [p]")
        given = list(params)
        if not given:
            raise ValueError(f"{type(self).__name__} was given no parameters: give at least one parameter")
        if isinstance(given[0], tuple):  # named_parameters()
            given = [p for _, p in given]
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        self.defaults = defaults
        self._hooks: dict[str, list[Callable]] = {}
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        for group in groups:
            self.add_param_group(group)

    def _hook(self, when: str, hook: Callable) -> Hook:
        hooks = self._hooks.setdefault(when, [])
        hooks.append(hook)
        return Hook(hooks, hook)

    def register_step_pre_hook(self, hook: Callable) -> Hook:
        """Call `hook(optimizer, args, kwargs)` before each step."""
        return self._hook("before", hook)

    def register_step_post_hook(self, hook: Callable) -> Hook:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return self._hook("after", hook)

    def register_state_dict_pre_hook(self, hook: Callable) -> Hook:
        """Call `hook(optimizer)` before `state_dict()`."""
        return self._hook("state_before", hook)

    def register_state_dict_post_hook(self, hook: Callable) -> Hook:
        """Call `hook(optimizer, state_dict)` after `state_dict()`; a returned value replaces the state."""
        return self._hook("state_after", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable) -> Hook:
        """Call `hook(optimizer, state_dict)` before a state is loaded; a returned value replaces the state."""
        return self._hook("load_before", hook)

    def register_load_state_dict_post_hook(self, hook: Callable) -> Hook:
        """Call `hook(optimizer)` after a state was loaded."""
        return self._hook("load_after", hook)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Wrap a subclass's `step`, so that hooks are called for users' optimizers too."""
        super().__init_subclass__(**settings)
        if "step" in cls.__dict__:
            cls.step = _hooked(cls.__dict__["step"])  # type: ignore[method-assign]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        given = param_group["params"]
        params = [given] if isinstance(given, Tensor) else list(given)
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"{type(self).__name__} takes tensors, not {type(p).__name__}")
            if p.node is not None:
                raise ValueError(
                    f"{type(self).__name__} takes leaves: a tensor of shape {p.shape} was computed: detach() it first"
                )
            if id(p) in known:
                raise ValueError(f"a parameter of shape {p.shape} is in more than one group of {type(self).__name__}")
        self.param_groups.append({**self.defaults, **param_group, "params": params})

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """The new value of a parameter. For users' optimizers; GT's own update many parameters at once."""
        raise NotImplementedError

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a parameter before its first step."""
        return {}

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        """Update parameters of one group with equal step counts."""
        for p, g, state in zip(params, grads, states):
            overwrite(p, self.update(p, g, state, group).handle)

    def update_sparse(self, params: list[Tensor], grads: list[SparseTensor], states: States, group: dict[str, Any]) -> None:
        """Update parameters of one group whose gradients are sparse: PyTorch's optimizers refuse them unless they say how."""
        if type(self).update_many is not Optimizer.update_many:
            other = ", please consider SparseAdam instead" if "Adam" in type(self).__name__ else ""
            raise RuntimeError(f"{type(self).__name__} does not support sparse gradients{other}")
        self.update_many(params, [dense(g) for g in grads], states, group)

    apart_by: str | None = None  # parameters without this entry of their state are updated apart from those with it

    def apart(self, p: Tensor, state: dict[str, Any]) -> Any:
        """A key: parameters of a group with equal keys and step counts are updated by one instruction."""
        return None

    def write(
        self, row: str, operands: tuple[Any, ...], columns: list[list[Tensor]], statics: tuple[Any, ...] = ()
    ) -> None:  # fmt: skip
        """Update many parameters by one instruction; its results are the new values of these columns of tensors, the parameters
        first."""
        made = foreach(TABLE[row], operands, statics)
        for i, (column, values) in enumerate(zip(columns, made)):
            overwrite_all(column, values, counted=i == 0)

    def numbers(
        self, params: list[Tensor], states: States, group: dict[str, Any], *names: str, count: bool = False, again: bool = False
    ) -> tuple[float | int, ...]:  # fmt: skip
        """The numbers of an update: settings of its group, and with `count` the step count. `again` marks the second
        instruction of a step."""
        found: list[float | int] = []
        for name in names:
            value = group[name]
            found += map(float, value) if type(value) is tuple else (float(value),)
        if count:
            found.append(states[0]["step"])
        noted = here().session.noted
        if noted is not None:
            noted.updates.append(self._places(params, states, group, names, again))
        return tuple(found)

    def _places(
        self, params: list[Tensor], states: States, group: dict[str, Any], names: tuple[str, ...], again: bool
    ) -> list[CapturedSetting]:
        """The settings of these numbers, and last each parameter's step count, even if it is not one of them."""
        found = []
        for name in names:
            parts = range(len(group[name])) if type(group[name]) is tuple else (None,)
            found += [CapturedSetting(self, group, name, part) for part in parts]
        counts = [(p, state) for p, state in zip(params, states) if "step" in state]
        return found + [CapturedSetting(self, state, "step", parameter=p, counts=not again) for p, state in counts]

    def _batches(self, group: dict[str, Any]) -> Iterator[tuple[list[Tensor], States]]:
        """The parameters of a group that have gradients, grouped by joint updates, with their states."""
        params = [p for p in group["params"] if p.grad is not None]
        known = self.state
        for p in params:
            if not known.get(p):
                known[p] = self.begin(p, group)
        states = [known[p] for p in params]
        if self.apart_by is not None:
            keys: list[Any] = [(state.get("step"), state.get(self.apart_by) is None) for state in states]
        elif type(self).apart is Optimizer.apart:
            keys = [state.get("step") for state in states]
        else:
            keys = [(state.get("step"), self.apart(p, state)) for p, state in zip(params, states)]
        if len(distinct := dict.fromkeys(keys)) == 1:
            yield params, states
            return
        for key in distinct:
            chosen = [i for i, k in enumerate(keys) if k == key]
            yield [params[i] for i in chosen], [states[i] for i in chosen]

    def step(self, closure: Any = None) -> Any:
        """Update every parameter by its gradient. A closure, if given, computes the loss and its gradients first."""
        hooks = self._hooks if type(self).step is Optimizer.step else {}
        for hook in hooks.get("before", ()):
            hook(self, (closure,) if closure is not None else (), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        outer = here()
        HERE.scope = outer.quiet(outer.origin or origin(2))
        try:
            for group in self.param_groups:
                for params, states in self._batches(group):
                    grads: list[Any] = [p.grad for p in params]
                    if SparseTensor not in map(type, grads):
                        self.update_many(params, grads, states, group)
                    else:
                        self._update_both(params, grads, states, group)
        finally:
            HERE.scope = outer
        outer.session.end_of_step()
        for hook in hooks.get("after", ()):
            hook(self, (closure,) if closure is not None else (), {})
        return loss

    def _update_both(self, params: list[Tensor], grads: list[Any], states: States, group: dict[str, Any]) -> None:
        """Update the parameters with dense gradients, then those with sparse ones."""
        for update, sparse in ((self.update_many, False), (self.update_sparse, True)):
            chosen = [i for i, g in enumerate(grads) if (type(g) is SparseTensor) is sparse]
            if chosen:
                update([params[i] for i in chosen], [grads[i] for i in chosen], [states[i] for i in chosen], group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none or p.grad is None:
                    RAW_GRAD.__set__(p, None)  # without the checks of `p.grad = x`
                elif not isinstance(p.grad, Tensor):
                    p.grad.zero_()
                else:
                    p.grad.detach().zero_()  # in place, so that other references see it
                    p.grad.node, p.grad.requires_grad = None, False

    # State, in PyTorch's form: parameters are numbers, in the order of the groups

    def state_dict(self) -> dict[str, Any]:
        for hook in self._hooks.get("state_before", ()):
            hook(self)
        numbers = {p: i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        groups = [{**group, "params": [numbers[p] for p in group["params"]]} for group in self.param_groups]
        state = {numbers[p]: dict(s) for p, s in self.state.items() if s and p in numbers}
        found: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in self._hooks.get("state_after", ()):
            changed = hook(self, found)
            found = found if changed is None else changed
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of `state_dict`, GT's or PyTorch's."""
        for hook in self._hooks.get("load_before", ()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups = state_dict["param_groups"]
        sizes = [len(g["params"]) for g in groups], [len(g["params"]) for g in self.param_groups]
        if sizes[0] != sizes[1]:
            raise ValueError(f"this state is of groups of {sizes[0]} parameters, the optimizer has {sizes[1]}")
        named: dict[Any, Tensor] = {}
        for own, saved in zip(self.param_groups, groups):
            named.update(zip(saved["params"], own["params"]))
            own.update({k: _plain(v) for k, v in saved.items() if k != "params" and k in own})
        self.state.clear()
        for n, state in state_dict["state"].items():
            if n in named:
                self.state[named[n]] = {k: _restored(k, v, named[n]) for k, v in state.items()}
        for hook in self._hooks.get("load_after", ()):
            hook(self)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params"]
        return "\n".join([*lines, ")"])


def _hooked(step: Callable) -> Callable:
    """A subclass's own `step` with hooks around it."""

    @wraps(step)
    def stepped(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if type(self).step is not stepped or not self._hooks:  # a step called by a subclass's step has its hooks there
            return step(self, *args, **kwargs)
        for hook in self._hooks.get("before", ()):
            hook(self, args, kwargs)
        loss = step(self, *args, **kwargs)
        for hook in self._hooks.get("after", ()):
            hook(self, args, kwargs)
        return loss

    return stepped


def _plain(value: Any) -> Any:
    """A setting as a number: PyTorch keeps some rates in tensors."""
    return value.item() if hasattr(value, "item") else value


def _restored(name: str, value: Any, like: Tensor) -> Any:
    if name == "step":
        return int(_plain(value))
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_restored(name, v, like) for v in value]
    found = value if isinstance(value, Tensor) else tensor(value)
    return found.detach().to(like.dtype).clone()  # steps write to it


def rate(name: str, value: Any, low: float = 0.0, below: float = float("inf")) -> None:
    """Raise unless a setting is within its bounds."""
    if not low <= value < below:
        raise ValueError(f"{name} is {value}: expected {low:g} or more" + (f", less than {below:g}" if below < 1e9 else ""))


def dense(gradient: Any) -> Tensor:
    return gradient if isinstance(gradient, Tensor) else gradient.to_dense()


def column(states: States, name: str) -> list[Tensor]:
    """One tensor of each state."""
    return [state[name] for state in states]


def count_step(states: States) -> None:
    for state in states:
        state["step"] += 1
