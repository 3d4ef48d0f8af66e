"""The walk over the tape: gradients are propagated from the roots to the leaves, latest op first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import AFTER, Node, Port, SparseGradient, Tensor
from gt.client.handle import Handle, origin_id
from gt.client.here import here
from gt.client.native import NATIVE
from gt.client.overwritten import Overwritten
from gt.client.scope import HERE, Scope
from gt.client.user_lines import origin
from gt.ops.table import TABLE
from gt.spec import Spec

LETTERS = "abcdefgh"  # inputs, as the op table names them


def backward(
    roots: list[Tensor], seeds: list[Tensor], retain_graph: bool = False, create_graph: bool = False,
    inputs: list[Tensor] | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Walk the tape from the roots, latest op first. Gradients are added to `.grad` of the leaves, or returned for `inputs`, if
    given."""
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
        walk.run()
        walk.settle()
    finally:
        HERE.scope = outer
    return [walk.caught.get(tape_position(t)) for t in inputs] if inputs is not None else []


class Walk:
    """One walk over the tape: the gradients that have arrived at nodes, and the inputs whose gradients are wanted."""

    __slots__ = ("retain", "graph", "wanted", "needed", "pulled", "arrived", "heap", "late", "caught", "check")

    def __init__(self, retain: bool, graph: bool, inputs: list[Tensor] | None) -> None:
        self.retain, self.graph = retain, graph
        self.wanted: Any = None if inputs is None else {tape_position(t) for t in inputs}
        self.needed: set[Node] = set()  # nodes on a path to a wanted gradient, and those of them that propagate it
        self.pulled: set[Node] = set()
        self.arrived: dict[Node, Any] = {}
        self.heap: list[tuple[int, Node]] = []
        self.late: dict[Tensor, Tensor] = {}  # gradients of leaves whose hooks are called with the sum
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
                self.late[edge] = g if edge not in self.late else _sum(self.late[edge], g)
            else:  # a new variable: several leaves may get the same gradient, and each may be written to
                accumulate(edge, g)
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

    def run(self) -> None:
        """Propagate the gradients; native.c does the same, faster, without create_graph and for all leaves."""
        heap, arrived = self.heap, self.arrived
        plain = not self.graph and self.wanted is None and self.check is None
        overwritten = here().session.overwritten
        if plain and NATIVE is not None:
            check, nodes = partial(check_saved, overwritten=overwritten), [node for _, node in heap]
            heap.clear()
            NATIVE.walk(
                nodes, arrived, self.retain, overwritten.last, check, _enter, self._gradients, _shaped, self.deliver
            )  # fmt: skip
            return
        last = None
        while heap:
            node = heappop(heap)[1]
            if node.order <= overwritten.last and type(node.inputs) is list:
                check_saved(node, overwritten)
            if node.scope is not last:
                last = node.scope
                _enter(last)
            if plain and type(node) is Node and node.plan.fast and type(node.inputs) is list and node.hooks is None:
                self._pull_each(node, arrived.pop(node))
            else:
                self._pull(node, arrived.pop(node))

    def _pull_each(self, node: Node, g: Tensor) -> None:
        """Propagate the gradients of an op's inputs, each by its own function. Values are freed in a fixed order: gradients,
        the node's saved values, the incoming gradient."""
        ins, edges, grad = node.plan.ins, node.edges, None
        found = node.plan.fast(g, node.inputs, node.output)
        for i, grad in found:
            self.deliver(edges[i], grad if grad.handle.spec is ins[i] else _shaped(grad, ins[i]))
        grad = None
        del found
        if not self.retain:
            node.inputs = node.output = None

    def _pull(self, node: Node, g: Any) -> None:
        """Propagate the gradients of any op's inputs."""
        grad = None
        found = self._gradients(node, g)
        for edge, held, grad in zip(node.edges, node.known.kind.ins, found):
            if edge is not None and grad is not None:
                self.deliver(edge, _shaped(grad, held))
        grad = None
        del found
        if not self.retain and (self.wanted is None or node in self.pulled):
            node.inputs = node.output = None

    def _gradients(self, node: Node, g: Any) -> Sequence[Tensor | None]:
        """The gradient of each input of an op; None for inputs on no path to a wanted gradient."""
        if node.hooks is not None:
            g = _hooked(node.hooks, g)
        if self.wanted is not None:
            self._catch(node, g)
            if node not in self.pulled:
                return ()
        found = node.pull(_fill(node, g), self.graph)
        if self.check is not None:
            self.check(node, found)
        return found

    def _catch(self, node: Node, g: Any) -> None:
        for at, part in enumerate(g) if isinstance(g, list) else ((None, g),):
            if self.wanted is not None and (node, at) in self.wanted and part is not None:
                self.caught[node, at] = part

    def settle(self) -> None:
        """Set the gradients of leaves whose hooks are called with the sum."""
        for leaf, g in self.late.items():
            g = _hooked(getattr(leaf, "hooks", None), g)
            if self.wanted is None:
                accumulate(leaf, g)
                for _, hook in [h for h in getattr(leaf, "hooks", None) or () if h[0] == AFTER]:
                    hook(leaf)
            elif leaf in self.wanted:
                self.caught[leaf] = g


def accumulate(leaf: Tensor, g: Tensor) -> None:
    """Add to `.grad` of a leaf: in place unless gradients of gradients are wanted, so that whoever holds it sees the sum."""
    before = leaf.grad
    if not isinstance(g, Tensor) or before is not None and not isinstance(before, Tensor):
        leaf.grad = g if before is None else _sum(before, g)
        return
    if before is None:
        leaf.grad = Tensor(g.handle, g.requires_grad, g.node)
        return
    total = before + g
    if total.requires_grad or total.handle.spec != before.handle.spec:
        leaf.grad = total
    else:
        before.handle = total.handle


def _sum(a: Any, b: Any) -> Any:
    """The sum of two gradients of a leaf, of which one may be sparse."""
    if isinstance(a, SparseGradient):
        return a.plus(b)
    return b.plus(a) if isinstance(b, SparseGradient) else a + b


@contextmanager
def gradient_scope(t: Tensor) -> Iterator[None]:
    """The scope in which the gradient of a tensor is computed."""
    node = t.node.node if isinstance(t.node, Port) else t.node
    before = here()
    if node is not None:
        HERE.scope = before.but(signal=node.scope.backward or node.scope.signal, backward="")
    try:
        yield
    finally:
        HERE.scope = before


def _enter(scope: Scope) -> None:
    """Let gradients be computed under the signal of the ops that were written in this scope."""
    inside: Any = HERE.scope
    under = scope.backward or scope.signal
    if inside.signal != under:
        HERE.scope = inside.but(signal=under, backward="")


def _hooked(hooks: Any, g: Any) -> Any:
    """The gradient after the hooks, each of which may replace it."""
    for at, hook in [h for h in hooks or () if h[0] != AFTER]:
        part = g if at is None else g[at]
        other = hook(part) if part is not None else None
        if other is not None and at is None:
            g = other
        elif other is not None:
            g = [other if i == at else x for i, x in enumerate(g)]
    return g


def tape_position(t: Tensor) -> Any:
    """The destination of a tensor's gradient: a leaf itself, or a node and the index of its result."""
    return t if t.node is None else (t.node.node, t.node.index) if isinstance(t.node, Port) else (t.node, None)


def behind(node: Node) -> Iterator[Node]:
    """The nodes that get a node's gradients."""
    for edge in node.edges:
        if edge is not None and not isinstance(edge, Tensor):
            yield edge.node if isinstance(edge, Port) else edge


def nodes_of(roots: list[Tensor], since: int = 0) -> list[Node]:
    """Every node that the roots depend on, latest first; with `since`, those of that order or later."""
    stack = [tape_position(t)[0] for t in roots if t.node is not None]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen and node.order >= since:
            seen.add(node)
            stack.extend(behind(node))
    return sorted(seen, key=lambda n: -n.order)


def leading(roots: list[Tensor], wanted: set) -> tuple[set[Node], set[Node]]:
    """The nodes on a path from the roots to the wanted inputs, and those of them that propagate further."""
    sources = {w[0] for w in wanted if isinstance(w, tuple)}
    needed: set[Node] = set()
    passed: set[Node] = set()
    for node in reversed(nodes_of(roots)):
        if any(isinstance(e, Tensor) and e in wanted for e in node.edges) or any(n in needed for n in behind(node)):
            passed.add(node)
        if node in passed or node in sources:
            needed.add(node)
    return needed, passed


def check_saved(node: Node, overwritten: Overwritten) -> None:
    """Raise if a value that the op's gradient reads, here or in PyTorch, was overwritten since."""
    output, since = node.output, overwritten.since
    saved = list(zip(LETTERS, node.inputs))
    saved += [(f"y{i}", h) for i, h in enumerate(output)] if type(output) is list else [("y", output)]
    found = [(h.spec, name) for name, h in saved if type(h) is Handle and since.get(origin_id(h), -1) >= node.order]
    specs = [spec for spec, name in found if name not in node.known.row.unchecked.split()]
    specs += [spec for id, spec in node.watched if since.get(id, -1) >= node.order]
    if specs:
        spec = specs[0]
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{spec.dtype.name} of shape {list(spec.shape)}, which {node.name} saved. Use the out-of-place form, or clone() "
            "the tensor before it is changed"
        )


class _Anomaly:
    """Anomaly detection: `check(node, gradients)` is called for each node if enabled."""

    check: Callable | None = None


ANOMALY = _Anomaly()


def _fill(node: Node, g: Any) -> Any:
    """Zeros as the gradients of unused results, except results that are saved for the gradient alone."""
    main = len(node.known.outs) - node.known.row.saved
    if isinstance(g, list) and any(x is None for x in g[:main]):
        return [_zeros(s) if x is None and i < main else x for i, (x, s) in enumerate(zip(g, node.known.outs))]
    return g


def _zeros(spec: Spec) -> Tensor:
    return apply(TABLE["full"], (0,), (spec.shape, spec.dtype.code))


def _shaped(grad: Tensor, want: Spec) -> Tensor:
    """A gradient summed over broadcast axes and cast to its input's shape and dtype."""
    if not isinstance(grad, Tensor):
        if isinstance(grad, SparseGradient):
            return grad
        raise TypeError(f"a gradient is a tensor, not {type(grad).__name__}")
    spec = grad.handle.spec
    if spec is want:
        return grad
    if spec.shape != want.shape:
        grad = grad.sum_to(want.shape)
    if spec.dtype is not want.dtype:
        grad = grad.to(want.dtype)
    return grad
