"""A softmax over very many classes: frequent ones first, rare ones in clusters of smaller vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gt.client.autograd import Tensor
from gt.client.functions.join import cat
from gt.nn.containers import ModuleList, Sequential
from gt.nn.linear import Linear
from gt.nn.module import Module


class ASMoutput(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Classes `cutoffs[i - 1]` to `cutoffs[i]` belong to cluster i. All clusters are computed for all inputs: the needed ones
    depend on the targets' values."""

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        cutoffs = list(cutoffs)
        rising = all(isinstance(c, int) for c in cutoffs) and cutoffs == sorted(set(cutoffs))
        if not cutoffs or not rising or min(cutoffs) <= 0 or max(cutoffs) > n_classes - 1:
            raise ValueError(f"cutoffs is {cutoffs}: expected integers that rise, from 1 to {n_classes - 1}")
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = [*cutoffs, n_classes]
        self.shortlist_size, self.n_clusters = cutoffs[0], len(cutoffs)
        self.head = Linear(in_features, self.shortlist_size + self.n_clusters, bias=head_bias, dtype=dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            hidden, size = int(in_features // div_value ** (i + 1)), self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(Sequential(Linear(in_features, hidden, bias=False, dtype=dtype),
                                        Linear(hidden, size, bias=False, dtype=dtype)))  # fmt: skip

    def reset_parameters(self) -> None:
        self.head.reset_parameters()
        for pair in self.tail:
            for layer in pair:
                layer.reset_parameters()

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probability of every class, for each row."""
        head = self.head(input).log_softmax(-1)
        parts = [head[..., : self.shortlist_size]]
        for i, pair in enumerate(self.tail):
            cluster = head[..., self.shortlist_size + i : self.shortlist_size + i + 1]
            parts.append(pair(input).log_softmax(-1) + cluster)
        return cat(parts, -1)

    def forward(self, input: Tensor, target: Tensor) -> ASMoutput:
        if target.ndim not in (0, 1) or input.ndim != target.ndim + 1:
            raise RuntimeError(f"targets of shape {tuple(target.shape)} do not fit inputs of shape {tuple(input.shape)}")
        output = self.log_prob(input).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return ASMoutput(output, (-output).mean())

    def predict(self, input: Tensor) -> Tensor:
        return self.log_prob(input).argmax(-1)
