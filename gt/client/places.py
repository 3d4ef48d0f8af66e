"""Where the numbers of an update lie, so that a step which is replayed without its Python finds them again."""

from __future__ import annotations

from typing import Any


class Place:
    """A setting of an optimizer's group or, for a `parameter`, the count of its steps, which each step adds one to."""

    __slots__ = ("optimizer", "parameter", "within", "name", "part")

    def __init__(
        self, optimizer: Any, within: dict[str, Any], name: str, part: int | None = None, parameter: Any = None
    ) -> None:
        self.optimizer, self.within, self.name, self.part, self.parameter = optimizer, within, name, part, parameter

    @property
    def key(self) -> tuple[int, str, int | None]:
        return id(self.within), self.name, self.part

    def value(self) -> Any:
        found = self.within[self.name]
        return found if self.parameter is not None else float(found if self.part is None else found[self.part])

    def stands(self) -> bool:
        """Whether the optimizer still looks there: its state may have been loaded anew."""
        if self.parameter is not None:
            return self.optimizer.state.get(self.parameter) is self.within
        return any(group is self.within for group in self.optimizer.param_groups)
