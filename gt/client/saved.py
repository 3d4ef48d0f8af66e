"""Values that PyTorch's gradients save and GT's do not. PyTorch refuses a gradient if a saved tensor was changed in place, and
so does GT, though it could compute it. Only ids are noted: no value is kept alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from gt.client.autograd import Node, Port, Tensor, node_of
from gt.parameters import parameters


def note_saved(found: Any, *saved: Any) -> Any:
    """Note that the result's gradient in PyTorch reads these tensors (None: an omitted argument), so that it is refused once
    one is overwritten."""
    parts = (found,) if isinstance(found, Tensor) else found if isinstance(found, tuple) else ()
    source = next((t.node for t in parts if isinstance(t, Tensor) and t.node is not None), None)
    if source is not None:
        flat = [t for s in saved for t in (s if isinstance(s, (tuple, list)) else (s,))]
        watch(source, flat)
    return found


def watch(source: Node | Port, tensors: Iterable[Any]) -> None:
    """Refuse the gradient of an op also when one of these tensors is overwritten."""
    node, found = node_of(source), []
    for t in tensors:
        if isinstance(t, Tensor):
            handle = t.handle
            found.append((handle.source or handle.id, handle.spec))  # as `origin_id` has it
    node.watched += tuple(found)


def saves(*names: str) -> Callable[[Callable], Callable]:
    """Decorates a function whose gradient in PyTorch reads these arguments ("result": its return value, "result 1": its second
    result)."""

    def wrap(f: Callable) -> Callable:
        places = parameters(f).names
        asked = [(places.index(n), n) for n in names if not n.startswith("result")]
        results = [int(n.removeprefix("result") or -1) for n in names if n.startswith("result")]

        @wraps(f)
        def call(*args: Any, **settings: Any) -> Any:
            found = f(*args, **settings)
            parts = (found,) if isinstance(found, Tensor) else tuple(found)
            if any(isinstance(t, Tensor) and t.requires_grad for t in parts):
                saved = [args[at] if at < len(args) else settings.get(name) for at, name in asked]
                saved += [t for i, t in enumerate(parts) if -1 in results or i in results]
                note_saved(parts, *saved)
            return found

        return call

    return wrap
