"""A client that reaches the dispatcher but not a worker, as behind a firewall, makes its own work wait and nobody else's."""

from __future__ import annotations

import zmq
from processes import Processes

import gt
from gt.spec import float32
from gt.transport import messages as m
from gt.transport.addresses import local_address
from gt.transport.auth import reach


def test_others_go_on_while_a_client_does_not_reach_the_worker(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port)
    gt.connect(f"localhost:{port}")
    x = gt.tensor([1.0, 2.0])
    assert x.tolist() == [1, 2]
    with zmq.Context.instance().socket(zmq.DEALER) as far:
        far.linger = 0
        reach(far, local_address(str(port)) or "")
        far.send(m.encode(m.Hello(m.VERSION, "", "far", 1)))
        assert far.poll(60_000) and isinstance(m.decode(far.recv()), m.Welcome)
        load = m.KindDef(1, "load", ((-2,),) * 3, ((2, 2), (2, 2), (0, 0), float32.code))
        for serial in range(1, 4):
            place = (serial, 0, 16)
            far.send(m.encode(m.Batch(serial, (load,) if serial == 1 else (), [(1, serial, *place)], ack=True)))
        for _ in range(20):
            assert (x + 1).tolist() == [2, 3] and gt.tensor([3.0]).tolist() == [3]
        assert not far.poll(0), "its work was not to be done yet"
    assert (x * 2).tolist() == [2, 4]


def test_collectives_of_others_go_on_while_a_client_whose_data_is_sharded_does_not_reach_the_workers(
    processes: Processes, disconnected: None
) -> None:
    _, port = processes.server()
    for _ in range(2):
        processes.worker(port, GT_COLLECTIVES="mail")
    gt.connect(f"localhost:{port}")
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    with gt.signal.context("rows"):
        x = gt.tensor([[1.0, 2.0], [3.0, 4.0]]) * 1.0
    with zmq.Context.instance().socket(zmq.DEALER) as far:
        far.linger = 0
        reach(far, local_address(str(port)) or "")
        far.send(m.encode(m.Hello(m.VERSION, "", "far", 1)))
        assert far.poll(60_000) and isinstance(m.decode(far.recv()), m.Welcome)
        far.send(m.encode(m.Configure({"rows": {"mesh": None, "axes": [0], "workers": None}})))
        load = m.KindDef(1, "load", ((-2,),) * 3, ((2, 2), (2, 2), (0, 0), float32.code), "rows")
        sums = m.KindDef(2, "sum", ((float32.code, 2, 2),), ((0,), False))
        read = ((9, 2, (float32.code, 2)),)
        far.send(m.encode(m.Batch(1, (load, sums), [(1, 1, 1, 0, 16), (2, 2, 1)], read)))
        far.send(m.encode(m.Ask(1, "clients")))
        assert far.poll(60_000) and isinstance(m.decode(far.recv()), m.Answer)  # its earlier messages were handled
        for _ in range(20):
            assert x.sum(0).tolist() == [4, 6]
        assert not far.poll(0), "its work was not to be done yet"
        far.send(m.encode(m.Ask(2, "clients")))
        assert far.poll(60_000) and isinstance(
            m.decode(far.recv()), m.Answer
        )  # it is still there, so nobody waited for its end
