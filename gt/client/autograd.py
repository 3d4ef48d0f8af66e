"""Tensors and the tape. The tape is the client's alone: each result that wants a gradient holds a node, a node holds what
its gradient reads, and both go when the tensors do. Gradients are ops like any other."""

from __future__ import annotations

import inspect
from heapq import heappop, heappush
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any

from gt.client.scope import HERE, Scope
from gt.client.session import Handle, Known, here
from gt.ops.table import Row
from gt.spec import Spec

_order = count(1).__next__
LETTERS = "abcdefgh"


class Tensor:
    """A variable: its value (`data`), whether gradients are wanted, and the tape behind it. Methods are in `functions`."""

    __slots__ = ("data", "node", "grad", "requires_grad", "hooks", "__weakref__")
    data: Handle
    node: Node | Port | None
    grad: Tensor | None
    requires_grad: bool

    def __init__(self, data: Handle, requires_grad: bool = False, node: Node | Port | None = None) -> None:
        self.data, self.requires_grad, self.node, self.grad = data, requires_grad, node, None

    if TYPE_CHECKING:  # the methods that `functions` gives it

        def __getattr__(self, name: str) -> Any: ...
        def _operator(self, other: Any) -> Tensor: ...

        __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = _operator
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = _operator

        def __neg__(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __len__(self) -> int: ...


class Port:
    """One result of a node that has several."""

    __slots__ = ("node", "index")

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index


class Node:
    """An op on the tape. `inputs` holds what its gradient reads: handles, numbers, and Specs for the rest; `edges` where each
    input's gradient goes: a node, a port, a leaf tensor or None."""

    __slots__ = ("known", "inputs", "edges", "output", "scope", "order", "thread", "hooks")

    def __init__(self, known: Known, operands: tuple, values: tuple, output: Any, scope: Scope) -> None:
        wants = tuple([type(o) not in (float, int, bool) and o.requires_grad for o in operands])
        plan = known.pulls.get(wants)
        if plan is None:
            plan = known.pulls[wants] = Plan(known, wants)
        self.inputs: Any = [
            o.data if kept else v if number else o.data.spec
            for o, v, kept, number in zip(operands, values, plan.keep, plan.numbers)
        ]
        self.edges = [(o.node or o) if w else None for o, w in zip(operands, wants)]
        self.known, self.scope, self.order, self.thread = known, scope, _order(), get_ident()
        self.output = output if plan.keeps_output else None
        self.hooks: list | None = None

    @property
    def name(self) -> str:
        return self.known.row.name


class Plan:
    """How the gradients of one kind are found, for one choice of inputs that want them."""

    __slots__ = ("pulls", "keep", "keeps_output", "numbers", "whole")

    def __init__(self, known: Known, wants: tuple[bool, ...]) -> None:
        row, n = known.row, len(wants)
        self.numbers = tuple(type(s) is not Spec for s in known.kind.ins)
        self.whole = not isinstance(row.grad, tuple)
        self.pulls: list[tuple[int, Any, list]] = []
        if self.whole:
            rest = "rest" in row.keep
            self.keep = tuple((rest and i > 0 or "inputs" in row.keep) and not x for i, x in enumerate(self.numbers))
            self.keeps_output = "outputs" in row.keep
            return
        named: set[str] = set()
        for i, want in enumerate(wants):
            function = row.grad[i] if i < len(row.grad) else None
            if want and function is not None:
                names = list(inspect.signature(function).parameters)
                self.pulls.append((i, function, [_reader(row, known, name) for name in names]))
                named.update(names)
        self.keep = tuple(LETTERS[i] in named and not self.numbers[i] for i in range(n))
        self.keeps_output = "y" in named


def _reader(row: Row, known: Known, name: str) -> Any:
    """What a gradient's parameter stands for: "g", "y", the number of an input, or a value known beforehand."""
    if name in ("g", "y"):
        return name
    if name in known.kind.settings:
        return (known.kind.settings[name],)
    if name[-1] in LETTERS and name in (name[-1], "s" + name[-1]):
        at = LETTERS.index(name[-1])
        return at if len(name) == 1 else (known.kind.ins[at],)
    raise TypeError(f"the gradient of {row} reads {name!r}: known are g, y, {LETTERS}, s{LETTERS[0]}.. and {row.statics}")


def gradients(node: Node, g: Any, graph: bool) -> list[Tensor | None]:
    """The gradient of each input of a node."""
    if node.inputs is None:
        raise RuntimeError(f"the tape behind {node.name} was freed by an earlier backward(): use retain_graph=True there")
    known = node.known
    plan: Plan = known.pulls[tuple([e is not None for e in node.edges])]

    def value(i: int) -> Any:
        held = node.inputs[i]
        if type(held) is not Handle:
            return held
        edge = node.edges[i] if graph else None
        if edge is None:
            return Tensor(held)
        if isinstance(edge, Tensor) and edge.data is held:
            return edge
        return Tensor(held, True, None if isinstance(edge, Tensor) else edge)

    if plan.whole:
        outputs = node.output if isinstance(node.output, list) else [node.output]
        ys = [Tensor(h, graph, (node if len(outputs) == 1 else Port(node, i)) if graph else None) if h else None
              for i, h in enumerate(outputs)]  # fmt: skip
        gs = g if isinstance(g, list) else [g]
        ins = [value(i) for i in range(len(node.inputs))]
        found = list(known.row.grad(gs, ys, ins, **known.kind.settings))
        return found + [None] * (len(node.edges) - len(found))
    found = [None] * len(node.edges)
    for i, function, readers in plan.pulls:
        args = []
        for r in readers:
            if r == "g":
                args.append(g)
            elif r == "y":
                args.append(Tensor(node.output, graph, node if graph else None))
            elif type(r) is int:
                args.append(value(r))
            else:
                args.append(r[0])
        found[i] = function(*args)
    return found


def backward(
    roots: list[Tensor], seeds: list[Tensor], retain_graph: bool = False, create_graph: bool = False,
    inputs: list[Tensor] | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Walk the tape from the roots, latest op first. Gradients go into `.grad` of the leaves, or, where `inputs` are named,
    are returned for those."""
    outer = here()
    arrived: dict[Node, Any] = {}
    heap: list[tuple[int, Node]] = []
    wanted = {_source(t): t for t in inputs} if inputs is not None else None
    caught: dict[Any, Tensor] = {}

    def deliver(edge: Any, g: Tensor) -> None:
        if isinstance(edge, Tensor):
            g = _hooked(getattr(edge, "hooks", None), g)
            if wanted is None:
                edge.grad = g if edge.grad is None else edge.grad + g
                return
        if wanted is not None and edge in wanted:
            caught[edge] = g if edge not in caught else caught[edge] + g
        if isinstance(edge, Tensor):
            return
        node, index = (edge.node, edge.index) if isinstance(edge, Port) else (edge, None)
        if node not in arrived:
            heappush(heap, (-node.order, node))
            arrived[node] = None if index is None else [None] * len(node.known.outs)
        if index is None:
            arrived[node] = g if arrived[node] is None else arrived[node] + g
        else:
            slot = arrived[node]
            slot[index] = g if slot[index] is None else slot[index] + g

    try:
        HERE.scope = outer.but(grad=create_graph)
        for root, seed in zip(roots, seeds):
            if root.requires_grad:
                deliver(root.node or root, seed)
        while heap:
            node = heappop(heap)[1]
            g = arrived.pop(node)
            under = node.scope.backward or node.scope.signal
            if HERE.scope.signal != under:
                HERE.scope = outer.but(grad=create_graph, signal=under, backward="")
            g = _hooked(node.hooks, g)
            found = gradients(node, _fill(node, g), create_graph)
            for edge, held, grad in zip(node.edges, node.known.kind.ins, found):
                if edge is not None and grad is not None:
                    deliver(edge, _shaped(grad, held))
            if not retain_graph:
                node.inputs = node.output = None
    finally:
        HERE.scope = outer
    return [caught.get(_source(t)) for t in inputs] if inputs is not None else []


def _hooked(hooks: Any, g: Any) -> Any:
    """The gradient after each hook has seen it and, where it gave another, replaced it."""
    for hook in hooks or ():
        other = hook(g)
        g = g if other is None else other
    return g


def _source(t: Tensor) -> Any:
    return t.node or t


def _fill(node: Node, g: Any) -> Any:
    """Results that nobody used have a gradient of zeros, save those that are there for the gradient alone."""
    main = len(node.known.outs) - node.known.row.extra
    if isinstance(g, list) and any(x is None for x in g[:main]):
        from gt.client.functions.creation import zeros

        return [
            zeros(s.shape, dtype=s.dtype) if x is None and i < main else x for i, (x, s) in enumerate(zip(g, node.known.outs))
        ]
    return g


def _shaped(grad: Tensor, want: Spec) -> Tensor:
    """A gradient summed over broadcast axes and cast back, so that it has its input's shape and dtype."""
    spec = grad.data.spec
    if spec is want:
        return grad
    if spec.shape != want.shape:
        grad = grad.sum_to(want.shape)
    if spec.dtype is not want.dtype:
        grad = grad.to(want.dtype)
    return grad
