"""Gradients of tables as sparse tensors: the rows that a step used and their indices (`Embedding(sparse=True)`)."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Node, Tensor
from gt.client.functions.registry import FUNCTIONS
from gt.client.functions.sparse import SparseTensor
from gt.spec import int64


class RowsNode(Node):
    """The node of `embedding` whose table, a leaf, gets a sparse gradient. Where gradients of gradients are wanted, the
    gradient is dense."""

    def pull(self, g: Any, graph: bool) -> list[Any]:
        if graph:
            return super().pull(g, graph)
        inputs = self.saved_inputs()
        table, index, padding = self.known.kind.ins[0], Tensor(inputs[1]), self.known.kind.settings["padding"]
        if padding >= 0:
            g = FUNCTIONS["where"]((index != padding).unsqueeze(-1), g, 0.0)
        places = index if index.dtype is int64 else index.to(int64)
        rows = g if g.ndim == 2 else g.reshape(places.numel(), table.shape[1])
        return [SparseTensor(places.reshape(1, -1), rows, table.shape, False), None]


def with_sparse_gradient(rows: Tensor) -> Tensor:
    """Rows of `embedding` with a table that is a leaf: its gradient will be sparse."""
    node: Any = rows.node
    if node is not None and isinstance(node.edges[0], Tensor):
        rows.node = RowsNode(
            node.known, node.plan, node.inputs, node.edges, node.output, node.scope, node.order, node.hooks, node.watched
        )
    return rows
