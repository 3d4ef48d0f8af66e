"""The pages of the key-value cache: the free ones, those of each request, and the number that fits into memory."""

from __future__ import annotations

from typing import Any

from gt.persistent.models import read_config

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class OutOfPages(RuntimeError):
    """A step needs more pages than are free. Nothing was computed or lost: cancel a request, or let others finish."""


def pages_for(length: int, page_size: int) -> int:
    """The number of pages for `length` tokens."""
    return -(-length // page_size)


def pages_that_fit(bytes: int, config: Any, page_size: int, dtype: Any = "float32") -> int:
    """The number of pages of a model's key-value cache that fit into this many bytes; a page holds keys and values of all
    layers.

    >>> config = dict(model_type="llama", num_attention_heads=4, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    ...               vocab_size=100)
    >>> gt.pages_that_fit(1 << 20, config, page_size=16)
    64
    """
    name = str(dtype).split(".")[-1]
    if name not in BYTES:
        raise ValueError(f"no cache dtype {dtype!r}: known are {', '.join(BYTES)}")
    if page_size < 1 or bytes < 0:
        raise ValueError(f"expected page_size of 1 or more and bytes of 0 or more, got {page_size} and {bytes}")
    c = read_config(config)
    return bytes // (2 * c.layers * page_size * c.kv_heads * c.head_dim * BYTES[name])


class PagePool:
    """Numbers of free pages. The page freed last is used first."""

    def __init__(self, count: int, page_size: int) -> None:
        self.count, self.page_size = count, page_size
        self.free = list(range(count - 1, -1, -1))

    def missing(self, held: list[int], length: int) -> int:
        """The number of pages that a request with `held` pages needs in addition for `length` tokens."""
        return max(0, pages_for(length, self.page_size) - len(held))

    def grow(self, held: list[int], length: int) -> None:
        for _ in range(self.missing(held, length)):
            held.append(self.free.pop())

    def release(self, held: list[int]) -> None:
        self.free.extend(reversed(held))
        held.clear()

    def check(self, holders: list[list[int]]) -> None:
        """Every page is free or held by one request."""
        numbers = sorted([*self.free, *(page for held in holders for page in held)])
        assert numbers == list(range(self.count)), f"pages {numbers} of {self.count}"
