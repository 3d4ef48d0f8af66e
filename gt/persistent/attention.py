"""The index computations of attention, shared by the executors written in Python."""

from __future__ import annotations


def rotary_position(position: int) -> int:
    """The row of the rotary tables for a token at `position`; the first token has row 0."""
    return position


def visible(position: int) -> int:
    """The number of tokens that a token at `position` attends to: itself and all before it."""
    return position + 1


def softmax_scale(head_dim: int) -> float:
    return head_dim**-0.5


def head_groups(heads: int, kv_heads: int) -> list[int]:
    """The key-value head of every query head: neighbours share one."""
    return [head // (heads // kv_heads) for head in range(heads)]


def held_in_pages(length: int, page_size: int) -> list[int]:
    """The number of tokens in each page of a request of `length`."""
    return [min(page_size, length - start) for start in range(0, length, page_size)]
