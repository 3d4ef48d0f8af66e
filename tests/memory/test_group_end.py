"""The end of process groups of torch.distributed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from gt.worker.collectives import torch_transport
from gt.worker.collectives.torch_transport import Distributed


class Group:
    def __init__(self, raises: bool = False) -> None:
        self.aborted: list[bool] = []
        self.raises = raises

    def abort(self) -> None:
        time.sleep(0.01)
        self.aborted.append(True)
        if self.raises:
            raise RuntimeError("it was aborted already")


@pytest.mark.parametrize("raises", [False, True])
def test_a_group_of_nccl_is_aborted_before_the_thread_launches_anything_else(raises: bool) -> None:
    made = Group(raises)
    Distributed(made, "nccl", lambda: None).end()
    assert made.aborted == [True]


WAITS = """
import threading
from gt.worker.collectives import torch_transport
began, dropped, did = threading.Event(), threading.Event(), []
class Group:  # as NCCL: ends its kernels, then waits until no graph has any
    def abort(self):
        began.set()
        dropped.wait()
        did.append("aborted")
class Graph:
    def running(self): return not began.is_set()
    def drop(self):
        did.append("dropped while it ran" if self.running() else "dropped")
        dropped.set()
torch_transport.ABORT = 60.0
group, graph = torch_transport.Distributed(Group(), "nccl", lambda: None), Graph()
torch_transport.RecordedCollectives(None, 0, group).graphs.add(graph)
group.end()
print(*did)
"""


def test_graphs_with_kernels_of_a_group_are_dropped_while_it_is_aborted() -> None:
    ended = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=240)
    assert ended.stdout == "dropped aborted\n", ended.stderr


def test_the_watchdog_of_pytorch_neither_sleeps_nor_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}

    class Made:
        Options = SimpleNamespace

        def __init__(self, *given: object) -> None:
            found.update({name: os.environ[name] for name in torch_transport.UNWATCHED})  # it reads them when it is made

        def eager_connect_single_device(self, device: torch.device) -> None: ...

    for name in torch_transport.UNWATCHED:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(torch_transport.dist, "ProcessGroupNCCL", Made, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    torch_transport._nccl(None, 0, 2, "127.0.0.1")
    assert found == dict.fromkeys(torch_transport.UNWATCHED, "0")


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
atexit.register(print, "a regular exit")
group = torch_transport.Distributed(None, {way!r}, lambda: None)
process.leave()
"""


@pytest.mark.parametrize("way", ["nccl", "gloo"])
def test_a_worker_that_had_a_group_of_nccl_does_not_wait_for_its_library_at_exit(way: str) -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES.format(way=way)], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0 and ("a regular exit" in ended.stdout) == (way != "nccl"), ended.stderr
