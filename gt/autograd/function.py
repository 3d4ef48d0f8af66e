"""Ops of one's own: a forward and its gradient, written in tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from gt.client.autograd import Node, Port, Tensor
from gt.client.grad_mode import enable_grad, no_grad
from gt.client.here import here
from gt.client.saved import watch
from gt.client.scope import HERE
from gt.client.user_lines import RING, origin
from gt.client.writes import taped_as


class Context:
    """The context of a Function: values that its forward saves for its gradient; other attributes are the user's."""

    def __init__(self) -> None:
        self.saved: tuple = ()
        self.node: Any = None  # a weak reference: the node holds this context
        self.marked: set[int] = set()
        self.dirty: set[int] = set()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved = tensors

    @property
    def saved_tensors(self) -> tuple:
        return tuple(t.tensor(self.node()) if isinstance(t, _Result) else t for t in self.saved)

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.marked |= {id(t) for t in tensors}

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Name the inputs that `forward` changed in place and returns."""
        self.dirty |= {id(t) for t in tensors}

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


class _Result:
    """A saved tensor that is a result of the function itself: kept without the node, which it would hold in a circle."""

    __slots__ = ("handle", "index", "wants")

    def __init__(self, t: Tensor, index: int | None, wants: bool) -> None:
        self.handle, self.index, self.wants = t.handle, index, wants

    def tensor(self, node: Any) -> Tensor:
        at = None if node is None or not self.wants else node if self.index is None else Port(node, self.index)
        return Tensor(self.handle, at is not None, at)


class _Shape:
    """The attributes of a kind that the tape reads, for a node that is no op of the table."""

    __slots__ = ("name", "ins", "outs", "saved")

    def __init__(self, name: str, ins: list, outs: list, saved: int) -> None:
        self.name, self.ins, self.outs, self.saved = name, ins, outs, saved

    @property
    def kind(self) -> _Shape:
        return self

    row = kind


class FunctionNode(Node):
    """The use of a Function on the tape."""

    function: Any = None
    ctx: Any = None

    @classmethod
    def of(cls, function: type[Function], ctx: Context, args: tuple, results: list[Tensor]) -> FunctionNode:
        scope = here()
        session = scope.session
        ins = [a.handle.spec if isinstance(a, Tensor) else None for a in args]
        saved = 0 if ctx.materialize_grads else len(results)
        known: Any = _Shape(function.__name__, ins, [t.handle.spec for t in results], saved)
        edges = [(a.node or a) if isinstance(a, Tensor) and a.requires_grad else None for a in args]
        order = session.next_id()
        session.asked_code[order % RING], session.asked_at[order % RING] = origin(3)
        return cls(known, None, [], edges, None, scope, order, function=function, ctx=ctx)

    def pull(self, g: Any, graph: bool) -> list[Tensor | None]:
        if self.inputs is None:
            raise RuntimeError(f"the tape behind {self.name} was freed by an earlier backward(): use retain_graph=True there")
        with enable_grad() if graph else no_grad():
            found = self.function.backward(self.ctx, *(g if isinstance(g, list) else [g]))
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        while len(found) > len(self.edges) and found[-1] is None:
            found.pop()
        if len(found) != len(self.edges):
            raise RuntimeError(f"{self.name}.backward gave {len(found)} gradients for {len(self.edges)} inputs")
        for i, (grad, spec) in enumerate(zip(found, self.known.kind.ins)):
            if grad is not None and self.edges[i] is not None and grad.handle.spec.numel < spec.numel:
                found[i] = grad.expand(spec.shape)
        return found


class Function:
    """Subclass with a static `forward(ctx, ...)` and `backward(ctx, *gradients)`, and call `apply`.

    >>> class Cube(gt.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x * x
    >>> x = gt.tensor(2.0, requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    tensor(12.)
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a Function: expected a static forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("a Function: expected a static backward(ctx, *gradients)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        ctx = Context()
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        setup = getattr(cls, "setup_context", None)
        with no_grad():
            result = cls.forward(*args) if setup else cls.forward(ctx, *args)
            if setup:
                setup(ctx, args, result)
        results = [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, Tensor)]
        assert HERE.scope is not None
        if not (HERE.scope.grad and any(ctx.needs_input_grad)) or not results:
            return result
        node = FunctionNode.of(cls, ctx, args, results)
        made, kept = {}, {}
        for i, t in enumerate(results):
            wants, index = t.handle.spec.dtype.rank >= 2 and id(t) not in ctx.marked, None if len(results) == 1 else i
            at: Node | Port | None = (node if index is None else Port(node, i)) if wants else None
            made[id(t)], kept[id(t)] = Tensor(t.handle, wants, at), _Result(t, index, wants)
            if id(t) in ctx.dirty:
                made[id(t)] = taped_as(t, made[id(t)])
        given = {id(a) for a in args} - ctx.dirty
        ctx.node = weakref.ref(node)
        watch(node, ctx.saved)
        ctx.saved = tuple(t if id(t) in given else kept.get(id(t), t) for t in ctx.saved)
        return tuple(made.get(id(t), t) for t in result) if isinstance(result, tuple) else made[id(result)]


class _Once(Function):
    """Passes gradients on, and refuses to have gradients itself."""

    @staticmethod
    def forward(ctx: Any, *gradients: Any) -> Any:
        return gradients

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


def once_differentiable(backward: Callable) -> Callable:
    """Mark a Function's `backward` whose own gradient is unknown: asking for it raises RuntimeError.

    >>> class Double(gt.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2
    ...     @staticmethod
    ...     @gt.autograd.function.once_differentiable
    ...     def backward(ctx, g):
    ...         return g * 2
    >>> x = gt.tensor(1.0, requires_grad=True)
    >>> Double.apply(x).backward()
    >>> x.grad
    tensor(2.)
    """

    @wraps(backward)
    def once(ctx: Any, *gradients: Any) -> Any:
        with no_grad():
            found = backward(ctx, *gradients)
        assert HERE.scope is not None
        if not HERE.scope.grad or not any(isinstance(g, Tensor) and g.requires_grad for g in gradients):
            return found
        parts = found if isinstance(found, tuple) else (found,)
        kept = [g.detach().requires_grad_() if isinstance(g, Tensor) else g for g in parts]
        return _Once.apply(*kept)

    return once
