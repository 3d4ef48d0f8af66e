"""Hooks on gradients: of leaves, and of intermediate results."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from gt.client.autograd import AFTER, Port, Tensor
from gt.client.functions.registry import method


class Hook:
    """The handle of a registered hook: `remove()` unregisters it."""

    def __init__(self, hooks: list, entry: Any) -> None:
        self._hooks, self._entry = hooks, entry

    def remove(self) -> None:
        self._hooks[:] = [e for e in self._hooks if e is not self._entry]

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def _hooks(t: Tensor) -> tuple[list, int | None]:
    """The hooks of this tensor's node on the tape, and the index of this result of the node."""
    if not t.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor without gradient: expected requires_grad=True")
    owner, at = (t.node.node, t.node.index) if isinstance(t.node, Port) else (t.node or t, None)
    hooks = getattr(owner, "hooks", None)
    if hooks is None:
        hooks = owner.hooks = []
    return hooks, at


@method
def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Hook:
    """Call `hook` with each gradient of this tensor; a returned value replaces the gradient."""
    hooks, at = _hooks(self)
    entry = (at, hook)
    first = next((i for i, (_, h) in enumerate(hooks) if isinstance(h, _Keep)), len(hooks))
    hooks.insert(len(hooks) if isinstance(hook, _Keep) else first, entry)  # a kept gradient is the final one
    return Hook(hooks, entry)


@method
def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], None]) -> Hook:
    """Call `hook` with this leaf each time its `.grad` has been accumulated."""
    if self.node is not None:
        raise RuntimeError("only leaves accumulate gradients: use register_hook")
    hooks, _ = _hooks(self)
    entry = (AFTER, hook)
    hooks.append(entry)
    return Hook(hooks, entry)


class _Keep:
    """Stores the gradient of an intermediate result in its `.grad`, while the result is referenced."""

    def __init__(self, t: Tensor) -> None:
        self.tensor = weakref.ref(t)

    def __call__(self, g: Tensor) -> None:
        t = self.tensor()
        if t is not None:
            t.grad = Tensor(g.handle, g.requires_grad, g.node) if t.grad is None else t.grad + g


def _kept(t: Tensor) -> bool:
    if t.node is None or not t.requires_grad:
        return False
    return any(isinstance(hook, _Keep) and hook.tensor() is t for _, hook in _hooks(t)[0])


@method
def retain_grad(self: Tensor) -> None:
    """Fill `.grad` although this tensor is no leaf."""
    if not self.requires_grad:
        raise RuntimeError("retain_grad() of a tensor without gradient: set requires_grad=True on its inputs")
    if self.node is not None and not _kept(self):
        self.register_hook(_Keep(self))


setattr(Tensor, "retains_grad", property(_kept))  # noqa: B010
