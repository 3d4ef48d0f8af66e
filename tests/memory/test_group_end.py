"""The end of process groups of torch.distributed."""

from __future__ import annotations

import subprocess
import sys
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


HANGS = """
import threading
from gt.worker.collectives import torch_transport
class Group:
    def abort(self): threading.Event().wait()
torch_transport.ABORT = 0.1
torch_transport.Distributed(Group(), "nccl", lambda: None).end()
"""


def test_a_worker_whose_group_cannot_be_aborted_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 3 and "NCCL did not abort a group within 0.1 s" in ended.stderr


LEAVES = """
import atexit
from gt.worker import process
from gt.worker.collectives import torch_transport
class Group:
    def abort(self): ...
atexit.register(print, "a regular exit")
torch_transport.Distributed(Group(), {way!r}, lambda: None).end()
process.leave()
"""


@pytest.mark.parametrize("way", ["nccl", "gloo"])
def test_a_worker_that_aborted_a_group_of_nccl_does_not_wait_for_its_library_at_exit(way: str) -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES.format(way=way)], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0 and ("a regular exit" in ended.stdout) == (way != "nccl"), ended.stderr
