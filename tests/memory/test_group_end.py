"""The end of process groups of torch.distributed."""

from __future__ import annotations

import threading
import weakref

import pytest

pytest.importorskip("torch")

from gt.worker.collectives.torch_transport import Distributed


class Group:
    def __init__(self, raises: bool = False) -> None:
        self.aborted: list[int] = []
        self.raises = raises

    def abort(self) -> None:
        self.aborted.append(threading.get_ident())
        if self.raises:
            raise RuntimeError("it was aborted already")


@pytest.mark.parametrize("raises", [False, True])
def test_a_group_of_nccl_is_aborted_before_the_thread_launches_anything_else(raises: bool) -> None:
    made = Group(raises)
    Distributed(made, "nccl", lambda: None).end()
    assert made.aborted == [threading.get_ident()]


def test_other_groups_end_without_an_abort() -> None:
    made, freed = Group(), threading.Event()
    aborted = made.aborted
    weakref.finalize(made, freed.set)
    group = Distributed(made, "gloo", lambda: None)
    del made
    group.end()
    assert freed.wait(60) and aborted == []
