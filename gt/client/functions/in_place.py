"""In-place forms, ending in _: they compute a new value and let the variable point at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.native import last_id
from gt.client.writes import assign, become, fill_at, repeats


def in_place(name: str, f: Callable, view: bool = False, filled: Callable | None = None) -> Callable:
    """The in-place form of a function; for a view function, the variable becomes the view. `filled`, for a function that only
    fills elements, gives (positions, value) from the positions of all elements: the form for tensors with repeated elements."""

    def change(self: Tensor, *args: Any, **settings: Any) -> Tensor:
        if filled is not None and repeats(self):
            return fill_at(self, f"{name}_", lambda at: filled(at, *args, **settings))
        since = last_id(self.handle.session)
        return assign(self, f(self, *args, **settings), since=since)

    def change_view(self: Tensor, *args: Any, **settings: Any) -> Tensor:
        return become(self, lambda x: f(x, *args, **settings))

    form = change_view if view else change
    form.__name__ = form.__qualname__ = f"{name}_"
    form.__doc__ = f"`{name}`, into this variable."
    return form
