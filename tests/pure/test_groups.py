"""How a worker with PyTorch chooses the way of a collective, without a socket."""

from __future__ import annotations

import torch

from gt.ops import TABLE, infer
from gt.spec import Spec, float32
from gt.transport.messages import Peer, Piece
from gt.worker.collectives import NO_STORE
from gt.worker.engine.torch import TorchEngine
from gt.worker.groups import Grouped


def peer(index: int, store: str) -> Peer:
    return Peer(index, f"w{index}", "ipc://nowhere", "here", store=store)


def grouped(store: str) -> Grouped:
    talk = Grouped(TorchEngine("cpu"), "127.0.0.1", lambda: None, float)
    talk.index, talk.store = 0, object()  # it keeps a store already
    talk.meet((peer(0, "127.0.0.1:1||"), peer(1, store)), "")
    return talk


def test_a_mate_that_has_not_said_how_it_is_reached_is_waited_for() -> None:
    talk = grouped("")
    kind = infer(TABLE["all_reduce"], (Spec((2,), float32), int), ((0, 1), "sum"))
    wait = talk.begin("c", kind, [torch.ones(2)], 7)
    assert not wait.ready() and not talk.outgoing() and not talk.groups and wait.missing() == [1]
    talk.meet((peer(0, "127.0.0.1:1||"), peer(1, NO_STORE)), "")  # it turns out to have no PyTorch
    assert not wait.ready() and not talk.groups and wait.missing() == [1]
    [mail] = talk.outgoing()
    assert mail.peer == "#1" and mail.message == Piece(0, "c", 7)
    talk.receive(Piece(1, "c", 7), torch.full((2,), 4.0).numpy().tobytes())
    assert wait.ready() and wait.result()[0].tolist() == [5.0, 5.0] and talk.ways == {"mail": 1}


def test_a_mate_that_is_gone_is_not_waited_for() -> None:
    talk = grouped("")
    kind = infer(TABLE["all_reduce"], (Spec((2,), float32), int), ((0, 1), "sum"))
    wait = talk.begin("c", kind, [torch.ones(2)], 7)
    talk.meet((peer(0, "127.0.0.1:1||"),), "worker w1 is gone")
    assert wait.ready()
    try:
        wait.result()
    except Exception as lost:
        assert type(lost).__name__ == "WorkerLost" and "w1 is gone" in str(lost)
    else:
        raise AssertionError("a collective without one of its members gave a result")
