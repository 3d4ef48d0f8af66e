"""Tensors and the tape. The tape exists at the client alone: each result that requires a gradient has a node, a node holds the
values that its gradient reads, and both are freed with the tensors. Gradients are ordinary ops."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gt.client.handle import Handle
from gt.client.kinds import Known
from gt.client.native import NATIVE
from gt.client.scope import Scope
from gt.ops.table import Row
from gt.spec import Spec

LETTERS = "abcdefgh"
AFTER = -1  # in place of a result index: a leaf's hooks that are called after `.grad` is set


CONSTRUCT: list[Callable[..., Tensor]] = []  # the function that makes a tensor of data or sizes, without native.c


class _Constructor(type(msgspec.Struct)):  # type: ignore[misc]
    """Makes `Tensor(2, 3)` and `Tensor([1.0])` of users tensors of sizes and data; GT itself makes them from a handle. With
    native.c this is done in C."""

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        if cls is Tensor and CONSTRUCT and not (args and (args[0] is None or type(args[0]) is Handle)):
            return CONSTRUCT[0](*args, **settings)
        return super().__call__(*args, **settings)


if TYPE_CHECKING or NATIVE is not None:
    _Struct = msgspec.Struct
else:

    class _Struct(msgspec.Struct, metaclass=_Constructor):
        pass


class Tensor(_Struct, eq=False, weakref=True):
    """A variable: its value (`handle`), whether it requires gradients, and its node on the tape. Methods are in `functions`.

    A view has its `base`, `how` it was made (a Known, or one of the classes in `views.py`) and its instruction (`made`: kind,
    id, id of the base's value at that time, numbers). A view is stale when its base has got another value since; `views.py`
    renews `handle`, `requires_grad` and `node` when one of them is read. For a tensor that is not a view, `made` counts the
    writes to it."""

    handle: Handle
    requires_grad: bool = False
    node: Node | Port | None = None
    grad: Tensor | None = None
    hooks: Any = None
    base: Tensor | None = None
    how: Any = None
    made: Any = None

    if TYPE_CHECKING:  # the methods that `functions` adds

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


class SparseGradient:
    """A gradient of a leaf that is no tensor; `SparseTensor` is one."""

    shape: Any
    dtype: Any

    def plus(self, other: Any) -> Any:
        """The sum of this gradient and another, sparse or not."""
        raise NotImplementedError


class Port(msgspec.Struct, eq=False):
    """One result of a node that has several."""

    node: Node
    index: int


def node_of(source: Any) -> Node:
    """The node behind an edge of the tape: the source itself, or the node of a port."""
    return source.node if type(source) is Port else source


class Node(msgspec.Struct, eq=False, weakref=True):
    """An op on the tape. `inputs` has the inputs that its gradient reads, as handles and numbers, and Specs of the others;
    `edges` the destination of each input's gradient: a node, a port, a leaf tensor or None. `order` is the id of its first
    result, so that later ops have larger ones and the session can find the user's line. `hooks` are (result index,
    function); `watched` are the values, by id and spec, that PyTorch's gradient reads and this one does not (`saved.py`)."""

    known: Known
    plan: Any  # a GradientPlan; None if the node is not an op of the table
    inputs: Any
    edges: Any
    output: Any  # the results' handles, if the gradient reads them
    scope: Scope
    order: int
    hooks: Any = None
    watched: tuple[tuple[int, Spec], ...] = ()

    @property
    def name(self) -> str:
        return self.known.row.name

    @property
    def next_functions(self) -> tuple:
        """The nodes of the inputs, as in PyTorch."""
        return tuple((e.node, e.index) if isinstance(e, Port) else (e, 0) for e in self.edges if e is not None)

    def pull(self, g: Any, graph: bool) -> list[Tensor | None]:
        """The gradient of each input, given that of the output (a list if there are several)."""
        self.saved_inputs()
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
                    if plan.conjugate:
                        args[-1] = args[-1].conj()
                elif type(r) is int:
                    args.append(self._value(r, graph))
                    if plan.conjugate and isinstance(args[-1], Tensor):
                        args[-1] = args[-1].conj()
                else:
                    args.append(r[0])
            found[i] = function(*args)
        return found

    def saved_inputs(self) -> Any:
        """`inputs`, or an error where an earlier walk has freed them."""
        if type(self.inputs) is not list:
            if self.inputs is None:
                raise RuntimeError(
                    f"the tape behind {self.name} was freed by an earlier backward(): use retain_graph=True there"
                )
            self.inputs.restore()
        return self.inputs

    def _pull_whole(self, g: Any, graph: bool) -> list[Tensor | None]:
        outputs = self.output if isinstance(self.output, list) else [self.output]
        ys = [Tensor(h, graph, (self if len(outputs) == 1 else Port(self, i)) if graph else None) if h else None
              for i, h in enumerate(outputs)]  # fmt: skip
        gs = g if isinstance(g, list) else [g]
        ins = (
            [self._value(i, True) for i in range(len(self.inputs))]
            if graph
            else [Tensor(held) if type(held) is Handle else held for held in self.inputs]
        )
        if self.plan.conjugate:
            ys = [y.conj() if isinstance(y, Tensor) else y for y in ys]
            ins = [x.conj() if isinstance(x, Tensor) else x for x in ins]
        found = list(self.plan.function(gs, ys, ins, **self.plan.settings))
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


class GradientPlan:
    """The computation of one kind's gradients, for one set of inputs that require them (bit i of `mask`: input i). `fast`
    returns [(input, gradient), ...] if the gradients themselves require none. `conjugate`: the gradient of an analytic function
    is the incoming one times the conjugate of the derivative, which is the derivative at the conjugates. With a `whole`
    gradient, one `function` with `settings` returns all gradients; `main` is the number of results that are not saved for the
    gradient alone."""

    __slots__ = ("pulls", "keep", "keeps_output", "whole", "fast", "conjugate", "ins", "main", "function", "settings")

    def __init__(self, known: Known, mask: int) -> None:
        row, ins = known.row, known.kind.ins
        grad: Any = row.grad
        tensor = [type(s) is Spec for s in ins]
        self.whole = not isinstance(grad, tuple)
        self.function, self.settings, self.ins = grad, known.kind.settings, tuple(ins)
        self.main = len(known.outs) - row.saved
        self.pulls: list[tuple[int, Any, list]] = []
        self.keeps_output: Any  # whether the output is kept, or a function that selects the part to keep
        self.fast: Callable[..., list] | None = None
        specs = (*(s for s in ins if type(s) is Spec), *known.outs)
        self.conjugate = row.complex == "analytic" and any(s.dtype.rank == 3 for s in specs)
        if self.whole:
            rest = "rest" in row.keep
            self.keep = tuple((rest and i > 0 or "inputs" in row.keep) and t for i, t in enumerate(tensor))
            self.keeps_output = partial(_last, row.saved) if "saved" in row.keep else "outputs" in row.keep
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
        conj = ".conj()" if self.conjugate else ""
        for i, function, readers in self.pulls:
            args = []
            for k, r in enumerate(readers):
                if type(r) is int:
                    args.append(f"T(x[{r}]){conj}" if tensor[r] else f"x[{r}]")
                elif type(r) is tuple:
                    names[f"c{i}_{k}"] = r[0]
                    args.append(f"c{i}_{k}")
                else:
                    args.append("g" if r == "g" else f"T(y){conj}")
            names[f"f{i}"] = function
            calls.append(f"({i}, f{i}({', '.join(args)}))")
        exec(f"def fast(g, x, y): return [{', '.join(calls)}]", names)
        return names["fast"]


def _last(n: int, outputs: list) -> list:
    """Only the last `n` outputs, which are saved for the gradient."""
    return [None] * (len(outputs) - n) + outputs[len(outputs) - n :]


def gradient_plan_for(known: Known, mask: int) -> GradientPlan:
    plan = known.pulls[mask] = GradientPlan(known, mask)
    return plan


def _reader(row: Row, known: Known, name: str) -> Any:
    """The meaning of a gradient function's parameter: "g", "y", the index of an input, or a constant."""
    if name in ("g", "y"):
        return name
    if name in known.kind.settings:
        return (known.kind.settings[name],)
    if name[-1] in LETTERS and name in (name[-1], "s" + name[-1]):
        at = LETTERS.index(name[-1])
        return at if len(name) == 1 else (known.kind.ins[at],)
    raise TypeError(f"the gradient of {row} reads {name!r}: known are g, y, {LETTERS}, s{LETTERS[0]}.. and {row.statics}")
