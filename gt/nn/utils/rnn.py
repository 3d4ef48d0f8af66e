"""Sequences of unequal length: padded to one tensor, or packed without the padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.create import from_numpy, full
from gt.client.functions.join import cat, stack


class PackedSequence(NamedTuple):
    """Elements of all sequences, position by position, longest sequence first; `batch_sizes` has their number at each."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The same with data in another dtype."""
        return self._replace(data=self.data.to(*args, **kwargs))

    def cpu(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Without effect: the dispatcher places tensors."""
        return self

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        return self

    def pin_memory(self) -> PackedSequence:
        return self

    def float(self) -> PackedSequence:
        return self.to("float32")

    def double(self) -> PackedSequence:
        return self.to("float64")

    def half(self) -> PackedSequence:
        return self.to("float16")

    def long(self) -> PackedSequence:
        return self.to("int64")

    @property
    def is_cuda(self) -> bool:
        return False

    def is_pinned(self) -> bool:
        return False


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Sequences as one tensor (longest, batch, ...), with the shorter ones padded."""
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side: expected right or left, got {padding_side!r}")
    longest = max(s.shape[0] for s in sequences)
    value: Any = padding_value if sequences[0].dtype.rank == 2 else int(padding_value)
    rows = []
    for s in sequences:
        rest = full((longest - s.shape[0], *s.shape[1:]), value, dtype=s.dtype)
        rows.append(s if s.shape[0] == longest else cat([s, rest] if padding_side == "right" else [rest, s]))
    return stack(rows, axis=0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The inverse of `pad_sequence`."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [x[i, :n] for i, n in enumerate(lengths.tolist())]


def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """Pack the elements that are not padding, position by position. Reads the lengths."""
    x = input.transpose(0, 1) if batch_first else input  # (longest, batch, ...)
    sizes = np.asarray(lengths.tolist() if isinstance(lengths, Tensor) else lengths, np.int64)
    order = np.argsort(-sizes, kind="stable")
    if sizes.ndim != 1 or len(sizes) != x.shape[1] or sizes.min() < 1:
        raise ValueError(f"pack_padded_sequence: expected {x.shape[1]} lengths of 1 or more, got {sizes}")
    if enforce_sorted and (order != np.arange(len(sizes))).any():
        raise RuntimeError(
            f"expected decreasing lengths, got {sizes.tolist()}: sort the sequences, or use enforce_sorted=False"
        )
    counts = np.array([(sizes > t).sum() for t in range(sizes.max())], np.int64)
    places = np.concatenate([t * len(sizes) + order[:n] for t, n in enumerate(counts)]).astype(np.int64)
    flat = x.reshape(-1, *x.shape[2:]).index_select(0, from_numpy(places))
    if enforce_sorted:
        return PackedSequence(flat, from_numpy(counts))
    return PackedSequence(flat, from_numpy(counts), from_numpy(order), from_numpy(np.argsort(order)))


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    return pack_padded_sequence(pad_sequence(sequences), [s.shape[0] for s in sequences], enforce_sorted=enforce_sorted)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """A packed sequence as one tensor (longest, batch, ...), and the lengths."""
    counts = np.array(sequence.batch_sizes.tolist(), np.int64)
    batch, n = int(counts[0]), len(counts)
    if total_length is not None and total_length < n:
        raise ValueError(f"total_length {total_length} is less than the longest sequence, {n}")
    order = np.array(sequence.sorted_indices.tolist()) if sequence.sorted_indices is not None else np.arange(batch)
    data, long = sequence.data, total_length or n
    places = np.full((long, batch), len(data), np.int64)  # the last row is padding
    at = 0
    for t, count in enumerate(counts):
        places[t, order[:count]] = np.arange(at, at + count)
        at += count
    value: Any = padding_value if data.dtype.rank == 2 else int(padding_value)
    rows = cat([data, full((1, *data.shape[1:]), value, dtype=data.dtype)])
    found = rows.index_select(0, from_numpy(places.reshape(-1))).reshape(long, batch, *data.shape[1:])
    sizes = np.empty(batch, np.int64)
    sizes[order] = [(counts > i).sum() for i in range(batch)]
    return found.transpose(0, 1) if batch_first else found, from_numpy(sizes)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The inverse of `pack_sequence`."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
