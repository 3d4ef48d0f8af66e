"""Which values were written over: PyTorch refuses a gradient that reads a tensor which was changed in place since it was saved.
Values on the workers never change, so the gradient could be computed here; it raises all the same, as it does there."""

from __future__ import annotations

from typing import Any

from gt.client.handle import Handle, origin_id

LETTERS = "abcdefgh"  # inputs, as the op table names them
MOST = 1 << 14  # values remembered; of writes before these, gradients are given without a word


class Overwritten:
    """The ids of values that variables had before they were written to, each with the id of the last result before that: what
    was made later than `last` was made after all writes."""

    __slots__ = ("since", "last")

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self.last = 0

    def add(self, handle: Handle, since: int) -> None:
        """The variable of this value is written to. Ops after `since` belong to the write, and may read it."""
        self.since[handle.source or handle.id] = since
        if since > self.last:
            self.last = since
        if len(self.since) > MOST:
            for id in list(self.since)[: MOST // 2]:
                del self.since[id]

    def check(self, node: Any) -> None:
        """Raise where a value that the gradient of an op reads was written over since."""
        output = node.output
        saved = list(zip(LETTERS, node.inputs))
        saved += [(f"y{i}", h) for i, h in enumerate(output)] if type(output) is list else [("y", output)]
        unchecked = node.known.row.unchecked.split() if saved else ()
        for name, handle in saved:
            if type(handle) is Handle and self.since.get(origin_id(handle), -1) >= node.order and name not in unchecked:
                spec = handle.spec
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"{spec.dtype.name} of shape {list(spec.shape)}, which {node.name} saved. Use the out-of-place form, or "
                    "clone() the tensor before it is changed"
                )
