"""The reference executor: float32 in NumPy, written to be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gt.persistent import attention
from gt.persistent.batch import DecodeBatch, TokenSpan
from gt.persistent.executor import Executor, ExecutorSettings
from gt.persistent.program import Attention, DecodeProgram, Embed, Linear, RMSNorm, Weight


def normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x (rows, heads, head_dim); cos and sin (rows, head_dim / 2)."""
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([left * c - right * s, right * c + left * s], axis=-1)


class NumpyExecutor(Executor):
    """With num_workers, the rows of every weight are split over so many threads; NumPy's BLAS may use more of its own."""

    options: tuple[str, ...] = ("num_workers",)

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        super().__init__(program, settings)
        self.cache: np.ndarray = np.zeros(self.cache_shape, np.float32)
        workers = settings.num_workers or 1
        self.pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def weight(self, weight: Weight) -> np.ndarray:
        return self.program.weights[weight.number]

    def embed(self, layer: Embed, tokens: np.ndarray) -> np.ndarray:
        return self.weight(layer.weight)[tokens]

    def rmsnorm(self, layer: RMSNorm, x: np.ndarray) -> np.ndarray:
        return normed(x, self.weight(layer.weight), layer.eps)

    def linear(self, layer: Linear, x: np.ndarray) -> np.ndarray:
        weight = self.weight(layer.weight)
        if self.pool is None:
            y = x @ weight.T
        else:
            parts = np.array_split(weight, self.settings.num_workers or 1)
            y = np.concatenate(list(self.pool.map(lambda part: x @ part.T, parts)), axis=1)
        return y if layer.bias is None else y + self.weight(layer.bias)

    def silu_mul(self, x: np.ndarray) -> np.ndarray:
        gate, up = np.split(x, 2, axis=1)
        # exp of a large number is infinity, and the quotient then 0, as it should be.
        with np.errstate(over="ignore"):
            return gate / (1 + np.exp(-gate)) * up

    def attention(self, layer: Attention, qkv: np.ndarray, batch: DecodeBatch) -> np.ndarray:
        h, g, d = layer.heads, layer.kv_heads, layer.head_dim
        q, k, v = np.split(qkv.reshape(len(qkv), h + 2 * g, d), [h, h + g], axis=1)
        q = q if layer.q_norm is None else normed(q, self.weight(layer.q_norm), layer.eps)
        k = k if layer.k_norm is None else normed(k, self.weight(layer.k_norm), layer.eps)
        if layer.cos is not None and layer.sin is not None:
            rows = [attention.rotary_position(p) for p in batch.positions().tolist()]
            cos, sin = self.weight(layer.cos)[rows], self.weight(layer.sin)[rows]
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        output = np.empty((len(qkv), h * d), np.float32)
        for span in batch.spans:
            rows_of = slice(span.first, span.first + span.rows)
            keys, values = self.append(layer.layer, k[rows_of], v[rows_of], span)
            output[rows_of] = self.attend(layer, q[rows_of], keys, values, span)
        return output

    def append(self, layer: int, k: np.ndarray, v: np.ndarray, span: TokenSpan) -> list[np.ndarray]:
        """Write new keys and values to their pages; returns those of the whole request, (length, kv heads, head_dim)."""
        size = self.settings.page_size
        positions = np.arange(span.position, span.length)
        pages = np.asarray(span.pages)[positions // size]
        held = attention.held_in_pages(span.length, size)
        found = []
        for cache, new in zip(self.cache[layer], (k, v)):
            cache[pages, positions % size] = new
            found.append(np.concatenate([cache[page, :count] for page, count in zip(span.pages, held)]))
        return found

    def attend(self, layer: Attention, q: np.ndarray, keys: np.ndarray, values: np.ndarray, span: TokenSpan) -> np.ndarray:
        groups = attention.head_groups(layer.heads, layer.kv_heads)
        keys, values = keys[:, groups].transpose(1, 2, 0), values[:, groups].transpose(1, 0, 2)
        scores = q.transpose(1, 0, 2) @ keys * np.float32(attention.softmax_scale(layer.head_dim))  # (heads, rows, length)
        seen = np.array([attention.visible(p) for p in range(span.position, span.length)])
        scores = np.where(np.arange(scores.shape[-1]) < seen[:, None], scores, -np.inf)
        likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
        likely /= likely.sum(axis=-1, keepdims=True)
        return (likely @ values).transpose(1, 0, 2).reshape(len(q), -1)

    def rows(self, x: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        return x[wanted]

    def to_numpy(self, x: np.ndarray) -> np.ndarray:
        return x

    def fill_pages(self, pages: list[int], value: float) -> None:
        self.cache[:, :, pages] = value

    def close(self) -> None:
        super().close()
        self.cache = np.zeros(0, np.float32)
        if self.pool is not None:
            self.pool.shutdown()
