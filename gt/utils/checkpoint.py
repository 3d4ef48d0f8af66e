"""Memory for time: tensors that a part of a model saves for its gradient are freed, and computed again when the gradient is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any

from gt.client.autograd import Node, Tensor
from gt.client.backward import nodes_of
from gt.client.here import here
from gt.client.scope import HERE
from gt.client.session import Session


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [t for part in parts for t in _tensors(part)]


def _apart(tree: Any) -> Any:
    """The same arguments, with leaves of their own in place of tensors: the tape of a second run ends there."""
    if isinstance(tree, Tensor):
        return Tensor(tree.handle, tree.requires_grad)
    if isinstance(tree, dict):
        return {k: _apart(v) for k, v in tree.items()}
    return type(tree)(_apart(t) for t in tree) if type(tree) in (list, tuple) else tree


class Draws:
    """Where a session's random numbers stand, to draw the same ones again."""

    def __init__(self, session: Session) -> None:
        self.session, self.seed, self.at = session, session.seed, next(session.draws)
        session.draws = count(self.at)

    def restore(self) -> None:
        self.session.seed, self.session.draws = self.seed, count(self.at)


class CheckpointSegment:
    """Stands in `inputs` of the nodes of a part that was let go; `restore` runs the part again and fills all of them."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict, draws: Draws | None) -> None:
        self.function, self.args, self.kwargs, self.draws, self.scope = function, args, kwargs, draws, here()
        self.nodes: list[Node] = []

    def run(self, args: tuple, kwargs: dict) -> tuple[Any, list[Node]]:
        since = self.scope.session.next_id()
        result = self.function(*args, **kwargs)
        made = nodes_of(
            _tensors(result), since
        )  # without nodes that save nothing here: of a Function, or of a checkpoint inside
        return result, [n for n in made if type(n) is Node and type(n.inputs) is list]

    def release(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        for node in nodes:
            node.inputs, node.output = self, None

    def restore(self) -> None:
        outer = here()
        after = Draws(self.scope.session) if self.draws else None
        try:
            HERE.scope = self.scope.but(grad=True)
            if self.draws:
                self.draws.restore()
            _, again = self.run(_apart(self.args), _apart(self.kwargs))
        finally:
            HERE.scope = outer
            if after:
                after.restore()
        if [n.known.kind.key for n in again] != [n.known.kind.key for n in self.nodes]:
            raise RuntimeError(
                "a checkpointed function ran other ops when it was called again for its gradient: expected the same ones"
            )
        for node, made in zip(self.nodes, again):
            if node.inputs is self:
                node.inputs, node.output = made.inputs, made.output


def checkpoint(
    function: Callable, *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """`function(*args)`, keeping only its arguments for the gradient. It must do the same each time it is called.

    >>> x = gt.ones(2, requires_grad=True)
    >>> gt.utils.checkpoint(lambda x: (x * 3).exp().sum(), x).backward()
    """
    scope = here()
    if not scope.grad:
        return function(*args, **kwargs)
    segment = CheckpointSegment(function, args, kwargs, Draws(scope.session) if preserve_rng_state else None)
    result, nodes = segment.run(args, kwargs)
    segment.release(nodes)
    return result


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool | None = None) -> Any:
    """A chain of functions in so many parts, all but the last checkpointed."""
    chain = list(functions)
    size = len(chain) // segments
    if not 1 <= segments <= len(chain):
        raise ValueError(f"cannot divide {len(chain)} functions into {segments} segments")

    def part(start: int, end: int) -> Callable:
        def run(x: Any) -> Any:
            for f in chain[start:end]:
                x = f(x)
            return x

        return run

    for i in range(segments - 1):
        input = checkpoint(part(i * size, (i + 1) * size), input)
    return part((segments - 1) * size, len(chain))(input)


class _CheckpointModule(ModuleType):
    """`gt.utils.checkpoint` is PyTorch's module and the function in one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(*args, **kwargs)


sys.modules[__name__].__class__ = _CheckpointModule
