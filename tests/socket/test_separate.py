"""A server, workers and clients started by hand."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from processes import Processes, free_port, until

import gt
from gt import errors
from gt.client.default import session


def test_a_server_a_worker_and_a_client_work_together(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "mine")
    gt.connect(f"localhost:{port}")
    assert gt.is_connected()
    a = gt.from_numpy(np.arange(6, dtype="f4").reshape(2, 3))
    assert (a @ a.T).tolist() == [[5, 14], [14, 50]]
    assert set(gt.debug.get_worker_stats()) == {"mine"}
    gt.disconnect()
    assert not gt.is_connected()


def test_a_worker_may_come_after_the_client(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    gt.connect(f"localhost:{port}")
    x = gt.ones(3) + 1
    processes.worker(port)
    assert x.tolist() == [2, 2, 2]


def test_loading_waits_for_the_first_worker(processes: Processes) -> None:
    _, port = processes.server()
    script = processes.script(
        """
        import sys, gt
        gt.connect(sys.argv[1]); print('here')
        print(gt.tensor([1., 2.]).tolist())
        """,
        f"localhost:{port}",
    ).wait_for("here")
    processes.worker(port)
    assert script.ended() == 0, script.err
    assert script.out == "here\n[1.0, 2.0]\n"


@pytest.mark.parametrize("address", ["localhost:{}", "127.0.0.1:{}", "tcp://127.0.0.1:{}"])
def test_a_connect_without_a_server_raises_its_reason(address: str, disconnected: None) -> None:
    with pytest.raises(errors.ConnectionFailed, match=r"no dispatcher answered at .* within 1 s: is `gt-server` running"):
        gt.connect(address.format(free_port()), timeout=1)
    assert not gt.is_connected()


def test_the_error_of_a_wrong_address_names_the_valid_forms(disconnected: None) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        gt.connect("localhost:")
    with pytest.raises(gt.errors.ConnectionFailed, match="there is no pool 'localhost'"):
        gt.connect("localhost")


def test_a_worker_without_a_server_fails_with_its_reason(processes: Processes) -> None:
    worker = processes.start("-m", "gt.worker", "-p", str(free_port()), "--backend", "numpy", "--timeout", "1")
    assert worker.ended() == 1
    assert "no dispatcher answered" in worker.err and "Traceback" not in worker.err


def test_an_unknown_backend_lists_the_known_ones(processes: Processes) -> None:
    worker = processes.start("-m", "gt.worker", "-p", "1", "--backend", "torhc")
    assert worker.ended() == 1
    assert "no backend 'torhc'" in worker.err and "numpy" in worker.err and "pytorch" in worker.err


def test_a_port_that_is_taken_is_an_error_with_its_reason(processes: Processes) -> None:
    _, port = processes.server()
    second = processes.start("-m", "gt.server", "-p", str(port))
    assert second.ended() == 1
    assert f"cannot listen on port {port}" in second.err and "Traceback" not in second.err


def test_a_server_starts_workers_of_its_own_on_request(processes: Processes, disconnected: None) -> None:
    server, port = processes.server("--workers", "2", "--backend", "numpy")
    gt.connect(f"localhost:{port}")
    until(lambda: len(gt.debug.get_worker_stats()) == 2, what="both workers")
    gt.disconnect()
    server.popen.terminate()
    assert server.ended() == 0
    until(lambda: not processes.running(), 15, "its workers end with it")


def test_workers_without_an_id_get_names_of_their_own(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    first, second = processes.worker(port), processes.worker(port)
    gt.connect(f"localhost:{port}")
    names = set(gt.debug.get_worker_stats())
    assert len(names) == 2 and all(str(p.pid) in " ".join(names) for p in (first, second))


def test_workers_of_another_engine_do_not_load_pytorch_to_meet(processes: Processes, disconnected: None) -> None:
    """It takes longer to load than all else that a worker does before its first op. The first collective takes it."""
    processes.fresh = True
    server, port = processes.server("--expect", "2")
    workers = [processes.worker(port) for _ in range(2)]
    gt.connect(f"localhost:{port}")
    for i in range(2):
        gt.register_config(f"on {i}", gt.SignalConfig(gt.ShardConfig(workers=[i])))
        with gt.signal(f"on {i}"):
            assert (gt.ones(2) + i).tolist() == [1.0 + i] * 2
    assert not [w for w in workers for m in psutil.Process(w.pid).memory_maps() if "libtorch" in m.path]
    assert not [m.path for m in psutil.Process(server.pid).memory_maps() if "numpy" in m.path]  # it reads no tensor's bytes


def test_two_workers_of_one_id_both_work(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "same")
    processes.worker(port, "--id", "same")
    gt.connect(f"localhost:{port}")
    assert len(gt.debug.get_worker_stats()) == 2


def test_the_pytorch_engine_serves_too(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port, backend="pytorch")
    gt.connect(f"localhost:{port}")
    x = gt.full((3,), 2.0, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [4, 4, 4]
    [stats] = gt.debug.get_worker_stats().values()
    assert stats["engine"] == "pytorch" and stats["device"] and stats["ops"]["mul"] >= 1


CLIENT = """
import sys, gt
gt.connect(sys.argv[1])
mine = float(sys.argv[2])
x = gt.full((16,), mine)
print('ready'); input()
for _ in range(300):
    x = x * 1.0 + 0.0
    assert x[3].item() == mine
print('right')
"""


def test_clients_never_see_each_other_s_values(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port)
    clients = [processes.script(CLIENT, f"localhost:{port}", str(i)) for i in range(3)]
    for c in clients:
        c.wait_for("ready")
    for c in clients:
        c.go()
    for c in clients:
        assert c.ended(60) == 0, c.err
        assert "right" in c.out


BIG = 3 << 20


def values() -> np.ndarray:
    return np.random.default_rng(0).random(BIG, dtype="f4")


def test_bulk_bytes_go_by_shared_memory_on_one_host(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port)
    gt.connect(f"localhost:{port}")
    assert session().link.shares
    x = gt.from_numpy(values())
    np.testing.assert_array_equal(x.numpy(), values())
    np.testing.assert_array_equal((x + 1).numpy(), values() + 1)


@pytest.mark.parametrize("key", ["", "a key of this test"])
def test_bulk_bytes_go_straight_to_the_worker_over_tcp(
    processes: Processes, disconnected: None, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """As from another host: its name differs, and it can see none of this one's memory."""
    monkeypatch.setattr("gt.transport.zmq.host_name", lambda: "elsewhere")
    monkeypatch.setattr("gt.transport.shm.supported", lambda: False)
    server, port = processes.server(*([] if key else ["--insecure"]), GT_KEY=key)
    processes.worker(port, "--host", "tcp://127.0.0.1", GT_KEY=key)
    gt.connect(f"tcp://127.0.0.1:{port}", key=key)
    assert not session().link.shares
    before = rss(server.pid)
    x = gt.from_numpy(values())
    np.testing.assert_array_equal(x.numpy(), values())
    np.testing.assert_array_equal((x + gt.tensor([1.0])).numpy(), values() + 1)
    assert rss(server.pid) - before < BIG, "the dispatcher saw the bytes"


def rss(pid: int) -> int:
    import psutil

    return psutil.Process(pid).memory_info().rss


def test_values_that_are_kept_are_not_overwritten_by_later_reads(processes: Processes, disconnected: None) -> None:
    """Large values are lent as they lie in a worker's memory; each stays as it was while someone looks at it."""
    _, port = processes.server()
    processes.worker(port)
    gt.connect(f"localhost:{port}")
    kept = [gt.full((5 << 20,), float(i)).numpy() for i in range(4)]
    for i, array in enumerate(kept):
        assert array[0] == array[-1] == i
    views = [a[:3] for a in kept]
    del kept, array
    more = [gt.full((5 << 20,), 9.0).numpy() for _ in range(3)]
    assert [v[0] for v in views] == [0, 1, 2, 3] and more[0][0] == 9


def test_a_loaded_array_may_be_changed_afterwards(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port)
    gt.connect(f"localhost:{port}")
    array = np.zeros(1 << 20, "f4")
    made = []
    for i in range(8):
        array[:] = i
        made.append(gt.from_numpy(array))
    assert [m[77].item() for m in made] == list(range(8))
