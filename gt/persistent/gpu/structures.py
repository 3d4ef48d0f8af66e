"""The structures that decode.cu and persistent.cu take, field by field, and the functions that fill them."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_uint, c_void_p
from typing import Any

from gt.persistent import attention
from gt.persistent.gpu.module import address
from gt.persistent.gpu.state import DecodeState
from gt.persistent.program import Attention

GROUP = 4  # as in decode.cu
MOST_SPLITS = 32  # parts of one request's tokens


class AttentionRow(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("q_norm", "k_norm", "cos", "sin", "keys", "values")),
        *((name, c_int) for name in ("heads", "kv_heads", "head_dim")),
        *((name, c_float) for name in ("eps", "scale")),
    ]


class PagesRow(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("positions", "slots", "tables")),
        *((name, c_int) for name in ("table_width", "page_size")),
        ("reciprocal", c_uint),
    ]


class PartialsRow(ctypes.Structure):
    _fields_ = [*((name, c_void_p) for name in ("sums", "weights", "arrived")), ("splits", c_int)]


class RunRow(ctypes.Structure):
    _fields_ = [
        *(
            (name, c_void_p)
            for name in ("chosen", "tokens", "positions", "counts", "made", "limits", "eos", "stop_at_first_end")
        ),
        *((name, c_int) for name in ("made_width", "stops")),
    ]


class PhaseRow(ctypes.Structure):
    _fields_ = [
        *((name, c_int) for name in ("kind", "width", "padded", "outputs")),
        *((name, c_int) for name in ("silu", "in_pairs", "adds_residual", "is_residual")),
        ("eps", c_float),
        ("table_stride", c_int),
        *((name, c_void_p) for name in ("weight", "table", "norm", "bias", "input", "output")),
        ("attention", AttentionRow),
    ]


class StepRow(ctypes.Structure):
    _fields_ = [
        ("phases", c_void_p),
        *((name, c_int) for name in ("phase_count", "rows", "row_bits")),
        ("pages", PagesRow),
        ("sums", c_void_p),
        *((name, c_int) for name in ("splits", "split_bits")),
        ("run", RunRow),
        *((name, c_void_p) for name in ("logits", "best", "steps")),
        *((name, c_int) for name in ("partials", "residual", "ring", "stages", "greedy")),
    ]


def attention_row(layer: Attention, weight: Any, cache: Any) -> AttentionRow:
    keys, values = cache[layer.layer]
    pointers = {name: address(weight(getattr(layer, name))) for name in ("q_norm", "k_norm", "cos", "sin")}
    return AttentionRow(
        **pointers,
        keys=address(keys),
        values=address(values),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        eps=layer.eps,
        scale=attention.softmax_scale(layer.head_dim),
    )


def pages_row(positions: Any, slots: Any, state: DecodeState, page_size: int) -> PagesRow:
    width, reciprocal = state.tables.shape[1], -(-(1 << 32) // page_size)
    if (reciprocal * page_size - (1 << 32)) * width * page_size >= 1 << 32:
        raise ValueError(f"pages of {page_size} tokens are too large on a GPU: use a power of two")
    return PagesRow(address(positions), address(slots), address(state.tables), width, page_size, reciprocal & 0xFFFFFFFF)


def run_row(state: DecodeState) -> RunRow:
    names = ("chosen", "tokens", "positions", "counts", "made", "limits", "eos", "stop_at_first_end")
    return RunRow(*(address(getattr(state, name)) for name in names), state.made.shape[1], len(state.eos))


def attention_bytes(layer: Attention, warps: int) -> int:
    """Shared memory of an item: q, the new key and value, and the parts of all warps and of the new token; later the weights of
    all splits."""
    width, together = layer.head_dim, min(GROUP, layer.heads // layer.kv_heads)
    return 4 * max((GROUP + 2) * width + (warps + 1) * together * (width + 2), 4 + 2 * GROUP * MOST_SPLITS)


def chunks(layer: Attention) -> int:
    """Into how many groups of heads the query heads of one key-value head are split."""
    return -(-(layer.heads // layer.kv_heads) // GROUP)
