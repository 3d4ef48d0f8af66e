"""A user's mistake raises on the user's line with the expected and the found value, and the session goes on."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np
import pytest

import gt

pytestmark = pytest.mark.usefixtures("pool")

MISTAKES: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (ValueError, r"cannot matmul \(2, 3\) by \(2, 3\): expected .*k = 3 and 2", lambda: gt.ones(2, 3) @ gt.ones(2, 3)),
    (TypeError, "cannot matmul float32 by int64", lambda: gt.ones(2, 2) @ gt.ones(2, 2, dtype=gt.int64)),
    (ValueError, r"cannot matmul \(\) by \(2,\)", lambda: gt.ones(()) @ gt.ones(2)),
    (ValueError, r"cannot broadcast \(2,\) with \(3,\): sizes 2 and 3 at axis 0", lambda: gt.ones(2) + gt.ones(3)),
    (TypeError, "cannot compute with str", lambda: gt.ones(2) + "x"),
    (TypeError, "cannot compute with NoneType", lambda: gt.ones(2) * None),
    (IndexError, "no axis 2 in a tensor of 2 dimensions: expected -2 to 1", lambda: gt.ones(2, 2).sum(axis=2)),
    (TypeError, "mean the same argument: give one", lambda: gt.ones(2, 2).sum(axis=0, dim=0)),
    (TypeError, "mean: expected a floating-point tensor, got int64", lambda: gt.arange(3).mean()),
    (ValueError, r"cannot reshape \(2, 3\) to \(4,\): 6 elements into 4", lambda: gt.ones(2, 3).reshape(4)),
    (ValueError, r"cannot reshape \(2, 3\) to \(-1, 4\)", lambda: gt.ones(2, 3).reshape(-1, 4)),
    (ValueError, r"cannot permute \(2, 3\) by \(0, 0\)", lambda: gt.ones(2, 3).permute(0, 0)),
    (ValueError, r"cannot expand \(2,\) to \(3,\)", lambda: gt.ones(2).expand(3)),
    (ValueError, r"cannot cat \(2, 2\), \(3, 3\) along axis 0", lambda: gt.cat([gt.ones(2, 2), gt.ones(3, 3)])),
    (ValueError, r"cannot stack \(2,\), \(3,\): expected one shape", lambda: gt.stack([gt.ones(2), gt.ones(3)])),
    (ValueError, "cat was given no tensors", lambda: gt.cat([])),
    (IndexError, r"index 5 is out of range for axis 0 of \(2,\): expected -2 to 1", lambda: gt.ones(2)[5]),
    (IndexError, "too many indices for a tensor of 1 dimensions: 2", lambda: gt.ones(2)[0, 0]),
    (IndexError, "at most one ...", lambda: gt.ones(2, 2)[..., ...]),
    (TypeError, "no dtype 'float31': known are", lambda: gt.ones(2, dtype="float31")),
    (ValueError, "cannot make a tensor of", lambda: gt.tensor(["a"])),
    (ValueError, "cannot make a tensor of this", lambda: gt.tensor([[1, 2], [3]])),
    (TypeError, "from_numpy: expected a NumPy array, got list", lambda: gt.from_numpy([1])),
    (ValueError, "expected sizes of 0 or more", lambda: gt.ones(-1)),
    (TypeError, "a shape: expected integers", lambda: gt.ones(2.5)),
    (ValueError, "cannot go by steps of 0", lambda: gt.arange(0, 5, 0)),
    (ValueError, "expected a low below the high", lambda: gt.randint(5, 5, (2,))),
    (ValueError, r"item\(\): expected one element, got \(2,\)", lambda: gt.ones(2).item()),
    (ValueError, "no single answer", lambda: bool(gt.ones(2))),
    (TypeError, "only a whole-number tensor of one element", lambda: [1, 2][gt.tensor(1.0)]),
    (AttributeError, "has no attribute 'ones_lik'", lambda: gt.ones_lik),
    (AttributeError, "no attribute 'summ'", lambda: gt.ones(2).summ()),
    (ValueError, "the largest or smallest of no elements", lambda: gt.ones(0).amax()),
    (RuntimeError, "result type float32 can't be cast to the desired output type int64", lambda: gt.arange(2).mul_(0.5)),
    (RuntimeError, r"shape \[2\] doesn't match the broadcast shape \[2, 2\]", lambda: gt.ones(2).add_(gt.ones(2, 2))),
    (ValueError, "linear", lambda: gt.nn.Linear(3, 2)(gt.ones(2, 4))),
    (ValueError, "lr is -1: expected 0 or more", lambda: gt.nn.SGD([gt.ones(1, requires_grad=True)], lr=-1)),
    (
        ValueError,
        "no reduction 'avg': known are mean, sum, none",
        lambda: gt.nn.mse_loss(gt.ones(1), gt.ones(1), reduction="avg"),
    ),
]


@pytest.mark.parametrize(("kind", "text", "mistake"), MISTAKES, ids=[m[1][:40] for m in MISTAKES])
def test_a_mistake_raises_at_once_and_the_session_goes_on(kind: type[Exception], text: str, mistake: Callable) -> None:
    before = gt.full((2,), 3.0)
    with pytest.raises(kind, match=text) as caught:
        mistake()
    lines = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert lines[1].endswith("test_mistakes.py"), "the user's line is in the traceback"
    assert (before + 1).tolist() == [4, 4]


@pytest.mark.filterwarnings("ignore:.*")
def test_gpu_workers_wants_a_whole_number_from_one_up() -> None:
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(ValueError, match="from 1 up"):
            gt.gpu_workers(wrong)  # type: ignore[arg-type]


def test_tensors_of_another_session_are_refused_by_name() -> None:
    mine = gt.ones(2)
    with gt.testing.cluster(), pytest.raises(RuntimeError, match="belongs to another session"):
        gt.ones(2) + mine
    assert mine.tolist() == [1, 1]


def test_a_failed_kernel_raises_where_its_value_is_read_with_both_tracebacks() -> None:
    x = gt.ones(2, 2)
    bad = x.gather(0, gt.tensor([[7, 7]]))  # no such row
    fine = x + 1
    with pytest.raises(gt.errors.RemoteError) as caught:
        (bad * 2 + fine).numpy()
    text = str(caught.value)
    assert "gather" in text and "asked for at" in text and "no such row" in text and "there\n" in text
    np.testing.assert_array_equal(fine.numpy(), 2)
