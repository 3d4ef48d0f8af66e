"""Tensors and the tape. The tape is the client's alone: each result that wants a gradient holds a node, a node holds what
its gradient reads, and both go when the tensors do. Gradients are ops like any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import msgspec

from gt.client.handle import Handle, Known
from gt.client.lines import origin
from gt.client.scope import HERE, Scope
from gt.client.session import here
from gt.ops.table import Row
from gt.spec import Spec

LETTERS = "abcdefgh"
AFTER = -1  # the place of a leaf's hooks that are called once `.grad` is there


class Tensor(msgspec.Struct, eq=False, weakref=True):
    """A variable: its value (`handle`), whether gradients are wanted, and the tape behind it. Methods are in `functions`."""

    handle: Handle
    requires_grad: bool = False
    node: Node | Port | None = None
    grad: Tensor | None = None
    hooks: Any = None

    if TYPE_CHECKING:  # the methods that `functions` gives it

        def __getattr__(self, name: str) -> Any: ...
        def _operator(self, other: Any) -> Tensor: ...

        __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = _operator
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = _operator

        __floordiv__ = __mod__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _operator

        def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __invert__(self) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __len__(self) -> int: ...


class Port:
    """One result of a node that has several."""

    __slots__ = ("node", "index")

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index


class Node(msgspec.Struct, eq=False, weakref=True):
    """An op on the tape. `inputs` holds what its gradient reads: handles, numbers, and Specs for the rest; `edges` where each
    input's gradient goes: a node, a port, a leaf tensor or None. `order` is the id of its first result, so that later ops
    have larger ones and the session still knows the line that asked for it. `hooks` are (which result, function)."""

    known: Known
    plan: Any  # a Plan; None where the node is no op of the table
    inputs: Any
    edges: Any
    output: Any  # the results' handles, where the gradient reads them
    scope: Scope
    order: int
    hooks: Any = None

    @property
    def name(self) -> str:
        return self.known.row.name

    @property
    def next_functions(self) -> tuple:
        """What stands before this op on the tape, as PyTorch shows it."""
        return tuple((e.node, e.index) if isinstance(e, Port) else (e, 0) for e in self.edges if e is not None)

    def pull(self, g: Any, graph: bool) -> list[Tensor | None]:
        """The gradient of each input, given that of the output (a list of them where there are several)."""
        if type(self.inputs) is not list:
            if self.inputs is None:
                raise RuntimeError(
                    f"the tape behind {self.name} was freed by an earlier backward(): use retain_graph=True there"
                )
            self.inputs.restore()
        plan = self.plan
        if plan.whole:
            return self._pull_whole(g, graph)
        found: list[Tensor | None] = [None] * len(self.edges)
        for i, function, readers in plan.pulls:
            args = []
            for r in readers:
                if r == "g":
                    args.append(g)
                elif r == "y":
                    args.append(Tensor(self.output, graph, self if graph else None))
                elif type(r) is int:
                    args.append(self._value(r, graph))
                else:
                    args.append(r[0])
            found[i] = function(*args)
        return found

    def _pull_whole(self, g: Any, graph: bool) -> list[Tensor | None]:
        outputs = self.output if isinstance(self.output, list) else [self.output]
        ys = [Tensor(h, graph, (self if len(outputs) == 1 else Port(self, i)) if graph else None) if h else None
              for i, h in enumerate(outputs)]  # fmt: skip
        gs = g if isinstance(g, list) else [g]
        ins = [self._value(i, graph) for i in range(len(self.inputs))]
        whole: Any = self.known.row.grad
        found = list(whole(gs, ys, ins, **self.known.kind.settings))
        return found + [None] * (len(self.edges) - len(found))

    def _value(self, i: int, graph: bool) -> Any:
        held = self.inputs[i]
        if type(held) is not Handle:
            return held
        edge = self.edges[i] if graph else None
        if edge is None:
            return Tensor(held)
        if isinstance(edge, Tensor) and edge.handle is held:
            return edge
        return Tensor(held, True, None if isinstance(edge, Tensor) else edge)


class Plan:
    """How the gradients of one kind are found, for one choice of inputs that want them (bit i of `mask`: input i). `fast`
    gives [(input, gradient), ...] where the gradients themselves want none."""

    __slots__ = ("pulls", "keep", "keeps_output", "whole", "fast")

    def __init__(self, known: Known, mask: int) -> None:
        row, ins = known.row, known.kind.ins
        grad: Any = row.grad
        tensor = [type(s) is Spec for s in ins]
        self.whole = not isinstance(grad, tuple)
        self.pulls: list[tuple[int, Any, list]] = []
        self.keeps_output: Any  # whether the output is kept, or a function that says what of it
        self.fast: Callable[..., list] | None = None
        if self.whole:
            rest = "rest" in row.keep
            self.keep = tuple((rest and i > 0 or "inputs" in row.keep) and t for i, t in enumerate(tensor))
            self.keeps_output = partial(_last, row.extra) if "extra" in row.keep else "outputs" in row.keep
            return
        named: set[str] = set()
        for i, function in enumerate(grad[: len(ins)]):
            if mask >> i & 1 and function is not None:
                names = list(inspect.signature(function).parameters)
                self.pulls.append((i, function, [_reader(row, known, name) for name in names]))
                named.update(names)
        self.keep = tuple(LETTERS[i] in named and t for i, t in enumerate(tensor))
        self.keeps_output = "y" in named
        self.fast = self._straight(tensor)

    def _straight(self, tensor: list[bool]) -> Callable[..., list]:
        """`pulls` as one function, as they run once for every op of every step."""
        names: dict[str, Any] = {"T": Tensor}
        calls = []
        for i, function, readers in self.pulls:
            args = []
            for k, r in enumerate(readers):
                if type(r) is int:
                    args.append(f"T(x[{r}])" if tensor[r] else f"x[{r}]")
                elif type(r) is tuple:
                    names[f"c{i}_{k}"] = r[0]
                    args.append(f"c{i}_{k}")
                else:
                    args.append("g" if r == "g" else "T(y)")
            names[f"f{i}"] = function
            calls.append(f"({i}, f{i}({', '.join(args)}))")
        exec(f"def fast(g, x, y): return [{', '.join(calls)}]", names)
        return names["fast"]


def _last(n: int, outputs: list) -> list:
    """Only the last `n` outputs: those that are there for the gradient."""
    return [None] * (len(outputs) - n) + outputs[len(outputs) - n :]


def plan_for(known: Known, mask: int) -> Plan:
    plan = known.pulls[mask] = Plan(known, mask)
    return plan


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


def backward(
    roots: list[Tensor], seeds: list[Tensor], retain_graph: bool = False, create_graph: bool = False,
    inputs: list[Tensor] | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Walk the tape from the roots, latest op first. Gradients go into `.grad` of the leaves, or, where `inputs` are named,
    are returned for those."""
    walk = Walk(retain_graph, create_graph, inputs)
    if inputs is not None:
        walk.needed, walk.pulled = leading(roots, walk.wanted or set())
    outer = here()
    try:
        asked = outer.origin or origin(2)
        if create_graph or outer.cast is not None:
            HERE.scope = outer.but(grad=create_graph, cast=None, origin=asked)
        else:
            HERE.scope = outer.quiet(asked)
        for root, seed in zip(roots, seeds):
            if root.requires_grad:
                walk.deliver(root.node or root, seed)
        walk.run(outer)
        walk.settle()
    finally:
        HERE.scope = outer
    return [walk.caught.get(place(t)) for t in inputs] if inputs is not None else []


class Walk:
    """One walk over the tape: gradients on their way, and where they are to end."""

    __slots__ = ("retain", "graph", "wanted", "needed", "pulled", "arrived", "heap", "late", "caught", "check")

    def __init__(self, retain: bool, graph: bool, inputs: list[Tensor] | None) -> None:
        self.retain, self.graph = retain, graph
        self.wanted: Any = None if inputs is None else {place(t) for t in inputs}
        self.needed: set[Node] = set()  # nodes whose gradient is asked for or leads on, and those of them it leads on from
        self.pulled: set[Node] = set()
        self.arrived: dict[Node, Any] = {}
        self.heap: list[tuple[int, Node]] = []
        self.late: dict[Tensor, Tensor] = {}  # gradients of leaves whose hooks are to see the sum
        self.caught: dict[Any, Tensor] = {}
        self.check: Callable | None = ANOMALY.check

    def deliver(self, edge: Any, g: Tensor) -> None:
        if type(edge) is Node and self.wanted is None:
            before = self.arrived.get(edge)
            if before is None:
                heappush(self.heap, (-edge.order, edge))
            self.arrived[edge] = g if before is None else before + g
            return
        if isinstance(edge, Tensor):
            if self.wanted is not None or getattr(edge, "hooks", None):
                self.late[edge] = g if edge not in self.late else self.late[edge] + g
            else:
                edge.grad = g if edge.grad is None else edge.grad + g
            return
        node, index = (edge.node, edge.index) if isinstance(edge, Port) else (edge, None)
        if self.wanted is not None and node not in self.needed:
            return
        if node not in self.arrived:
            heappush(self.heap, (-node.order, node))
            self.arrived[node] = None if index is None else [None] * len(node.known.outs)
        if index is None:
            self.arrived[node] = g if self.arrived[node] is None else self.arrived[node] + g
        else:
            slot = self.arrived[node]
            slot[index] = g if slot[index] is None else slot[index] + g

    def run(self, outer: Scope) -> None:
        heap, arrived, deliver = self.heap, self.arrived, self.deliver
        plain = not self.graph and self.wanted is None and self.check is None
        inside: Any = HERE.scope
        last = None
        while heap:
            node = heappop(heap)[1]
            g = arrived.pop(node)
            if node.scope is not last:
                last = node.scope
                under = last.backward or last.signal
                if inside.signal != under:
                    inside = HERE.scope = inside.but(signal=under, backward="")
            if plain and type(node) is Node and node.plan.fast and type(node.inputs) is list and node.hooks is None:
                ins, edges = node.known.kind.ins, node.edges
                for i, grad in node.plan.fast(g, node.inputs, node.output):
                    deliver(edges[i], grad if grad.handle.spec is ins[i] else _shaped(grad, ins[i]))
                if not self.retain:
                    node.inputs = node.output = None
                continue
            if node.hooks is not None:
                g = _hooked(node.hooks, g)
            if self.wanted is not None:
                self._catch(node, g)
                if node not in self.pulled:
                    continue
            found = node.pull(_fill(node, g), self.graph)
            if self.check is not None:
                self.check(node, found)
            for edge, held, grad in zip(node.edges, node.known.kind.ins, found):
                if edge is not None and grad is not None:
                    deliver(edge, _shaped(grad, held))
            if not self.retain:
                node.inputs = node.output = None

    def _catch(self, node: Node, g: Any) -> None:
        for at, part in enumerate(g) if isinstance(g, list) else ((None, g),):
            if self.wanted is not None and (node, at) in self.wanted and part is not None:
                self.caught[node, at] = part

    def settle(self) -> None:
        """Give the leaves that waited for the whole of their gradient what is theirs."""
        for leaf, g in self.late.items():
            g = _hooked(getattr(leaf, "hooks", None), g)
            if self.wanted is None:
                leaf.grad = g if leaf.grad is None else leaf.grad + g
                for _, hook in [h for h in getattr(leaf, "hooks", None) or () if h[0] == AFTER]:
                    hook(leaf)
            elif leaf in self.wanted:
                self.caught[leaf] = g


@contextmanager
def beside(t: Tensor) -> Iterator[None]:
    """The scope in which the gradient of a tensor is computed."""
    node = t.node.node if isinstance(t.node, Port) else t.node
    before = here()
    if node is not None:
        HERE.scope = before.but(signal=node.scope.backward or node.scope.signal, backward="")
    try:
        yield
    finally:
        HERE.scope = before


def _hooked(hooks: Any, g: Any) -> Any:
    """The gradient after each hook has seen it and, where it gave another, replaced it."""
    for at, hook in [h for h in hooks or () if h[0] != AFTER]:
        part = g if at is None else g[at]
        other = hook(part) if part is not None else None
        if other is not None and at is None:
            g = other
        elif other is not None:
            g = [other if i == at else x for i, x in enumerate(g)]
    return g


def place(t: Tensor) -> Any:
    """Where a gradient for this tensor arrives: a leaf itself, or a node and which of its results."""
    return t if t.node is None else (t.node.node, t.node.index) if isinstance(t.node, Port) else (t.node, None)


def behind(node: Node) -> Iterator[Node]:
    """The nodes that a node's gradients go to."""
    for edge in node.edges:
        if edge is not None and not isinstance(edge, Tensor):
            yield edge.node if isinstance(edge, Port) else edge


def nodes_of(roots: list[Tensor], since: int = 0) -> list[Node]:
    """Every node the roots were made by, latest first; with `since`, those of that order or later."""
    stack = [place(t)[0] for t in roots if t.node is not None]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen and node.order >= since:
            seen.add(node)
            stack.extend(behind(node))
    return sorted(seen, key=lambda n: -n.order)


def leading(roots: list[Tensor], wanted: set) -> tuple[set[Node], set[Node]]:
    """The nodes by way of which, from the roots, a gradient comes to what is wanted; and those it passes through."""
    sources = {w[0] for w in wanted if isinstance(w, tuple)}
    needed: set[Node] = set()
    passed: set[Node] = set()
    for node in reversed(nodes_of(roots)):
        if any(isinstance(e, Tensor) and e in wanted for e in node.edges) or any(n in needed for n in behind(node)):
            passed.add(node)
        if node in passed or node in sources:
            needed.add(node)
    return needed, passed


class _Anomaly:
    """Whether walks look at each gradient, and how: `check(node, gradients)`."""

    check: Callable | None = None


ANOMALY = _Anomaly()


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
    spec = grad.handle.spec
    if spec is want:
        return grad
    if spec.shape != want.shape:
        grad = grad.sum_to(want.shape)
    if spec.dtype is not want.dtype:
        grad = grad.to(want.dtype)
    return grad
