"""Tensors that share memory in PyTorch share it in GT, and no others do: the result of each op of PyTorch's `op_db` is
written to, and the op's inputs are compared afterwards."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's op_db needs it")
import gt  # noqa: E402
from gt.testing import cluster  # noqa: E402
from tests.ops.opinfo import ENTRIES, GT, UNWRITTEN, PyTorch, Unsupported, close, full_name, leaves, mapped, samples  # noqa: E402
from tests.ops.opinfo_exceptions import EXCEPTIONS  # noqa: E402

SAMPLES = 3
LIKE = (1e-3, 1e-4)


def is_view(op: Any) -> bool:
    """Whether PyTorch declares that a result of the op may share memory with an argument."""
    packet = getattr(torch.ops.aten, op.aten_name or op.name, None)
    for name in packet.overloads() if packet is not None else ():
        schema = getattr(packet, name)._schema
        if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            return True
    return False


def written(side: PyTorch, op: Any, sample: Any) -> list[torch.Tensor]:
    """The inputs, and then the results, after each result in turn was written to."""
    inputs: list[Any] = []

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return side.translate(value)
        inputs.append(side.put(value.detach()))
        return inputs[-1]

    given, args, kwargs = (mapped(v, put) for v in (sample.input, tuple(sample.args), dict(sample.kwargs)))
    results = [r for r in leaves(side.call(op)(given, *args, **kwargs)) if isinstance(r, side.tensor)]
    for i, result in enumerate(results):
        if result.dtype not in (torch.bool, gt.bool):
            result.mul_(i + 2)
            result[...] = 3
        else:
            result.logical_not_()
    return [side.read(t) for t in (*inputs, *results)]


def outcome(side: PyTorch, op: Any, sample: Any) -> Any:
    try:
        return written(side, op, sample)
    except Unsupported:
        raise
    except Exception as wrong:  # noqa: BLE001 - both sides have to raise
        return wrong


def differences(op: Any, engine: str, dtype: Any, count: int = SAMPLES) -> list[str]:
    found = []
    with warnings.catch_warnings(), cluster(engine=engine) as made:
        warnings.simplefilter("ignore")
        side = GT(made)
        for sample in samples(op, dtype, count, requires_grad=False):
            try:
                mine = outcome(side, op, sample)
            except Unsupported:
                continue
            theirs = outcome(PyTorch(), op, sample)
            if isinstance(theirs, Exception) or isinstance(mine, Exception):
                if isinstance(theirs, Exception) is not isinstance(mine, Exception):
                    found.append(f"{mine if isinstance(mine, Exception) else 'done'}; PyTorch: {theirs}")
                continue
            found += [wrong for a, b in zip(mine, theirs) if (wrong := close(a, b, LIKE))]
    return found


def check(op: Any, engine: str) -> None:
    for dtype in (torch.float32, torch.complex64):
        if dtype in op.dtypes and not (dtype.is_complex and full_name(op) in EXCEPTIONS["dtypes"]):
            assert not differences(op, engine, dtype), dtype


RIGHT = [op for op in ENTRIES if full_name(op) not in EXCEPTIONS["plain"] and op.name not in UNWRITTEN]
VIEWS = [op for op in RIGHT if is_view(op)]


def test_pytorch_declares_some_forty_views():
    assert len({op.name for op in VIEWS}) > 40


@pytest.mark.parametrize("op", VIEWS, ids=full_name)
def test_a_write_through_a_view_is_in_the_input(op):
    check(op, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("op", RIGHT, ids=full_name)
def test_a_write_into_a_result_changes_the_inputs_that_it_changes_in_pytorch(op):
    check(op, "pytorch")
