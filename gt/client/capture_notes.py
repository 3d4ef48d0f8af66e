"""Notes of a captured function: the optimizer settings behind the numbers of its updates, and the called modules."""

from __future__ import annotations

from typing import Any


class CapturedSetting:
    """A setting of an optimizer's parameter group or, with a `parameter`, its step count. If a step is two instructions, only
    the first of them `counts`."""

    __slots__ = ("optimizer", "parameter", "within", "name", "part", "counts")

    def __init__(
        self, optimizer: Any, within: dict[str, Any], name: str, part: int | None = None, parameter: Any = None,
        counts: bool = True,
    ) -> None:  # fmt: skip
        self.optimizer, self.within, self.name, self.part, self.parameter = optimizer, within, name, part, parameter
        self.counts = counts

    @property
    def key(self) -> tuple[int, str, int | None]:
        return id(self.within), self.name, self.part

    def value(self) -> Any:
        found = self.within[self.name]
        return found if self.parameter is not None else float(found if self.part is None else found[self.part])

    def stands(self) -> bool:
        """Whether the optimizer still uses this setting: its state may have been loaded again."""
        if self.parameter is not None:
            return self.optimizer.state.get(self.parameter) is self.within
        return any(group is self.within for group in self.optimizer.param_groups)


class Notes:
    """Notes of a captured function: for each update the settings of its numbers, and the called modules."""

    def __init__(self) -> None:
        self.updates: list[list[CapturedSetting]] = []
        self.modules: dict[int, Any] = {}
