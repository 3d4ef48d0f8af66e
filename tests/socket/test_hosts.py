"""A dispatcher, workers and a client on hosts of their own: nothing is shared but the network."""

from __future__ import annotations

import pytest
from hosts import Hosts, _ip, possible
from processes import Processes
from test_sharded import PROGRAM

KEY, WORKERS = "a key of these tests", "the key of their workers"
LARGE = """
import zmq
from gt.client.here import here
link = here().session.link
assert len(link.workers.sockets) == 2 and not any(link.workers.sharing.values()) and not link.shares
ends = [s.getsockopt(zmq.LAST_ENDPOINT).decode() for s in link.workers.sockets.values()]
assert sorted(e.rpartition(":")[0] for e in ends) == sys.argv[2:], ends
a = np.arange(1 << 20, dtype="f4").reshape(1024, 1024)
with gt.signal("batch"):
    t = gt.from_numpy(a)                                # a half to each
turned = gt.signal.tensor(t, name="columns")            # half of each half to the other
assert (turned.numpy() == a).all()
names = [s["engine"] for s in gt.debug.get_worker_stats().values()]
print(len(names), "workers,", a.nbytes, "bytes")
"""


NEEDS = pytest.mark.skipif(not possible(), reason="takes network namespaces, which this user may not make")
KEYS = {"GT_KEY": KEY, "GT_WORKER_KEY": WORKERS}
SUM = """
import sys, numpy as np, gt
gt.connect(sys.argv[1])
gt.register_config("batch", gt.SignalConfig(gt.ShardConfig(axis=0)))
a = np.arange(8 * 30000, dtype="f4").reshape(8, 30000)
with gt.signal("batch"):
    x = gt.from_numpy(a)
np.testing.assert_allclose(x.sum(axis=0).numpy(), a.sum(0))
print(sorted(s["mailed"].get("other hosts", 0) > 0 for s in gt.debug.get_worker_stats().values()), "fine")
"""


def start(processes: Processes, hosts: Hosts, server: str, listen: str, workers: dict[int, list[str]]) -> None:
    """A dispatcher on the first host and workers on others, with these arguments; none shares anything with another."""
    port = "9000"
    processes.start(
        "-m", "gt.server", "-p", port, "--host", listen, "--expect", str(len(workers)), within=hosts.within[0], **KEYS
    )  # fmt: skip
    for host, args in workers.items():
        command = ["-m", "gt.worker", "--host", server, "-p", port, "--backend", "numpy", *args]
        processes.start(*command, within=hosts.within[host], GT_COLLECTIVES="mail", **KEYS)


def sums(processes: Processes, hosts: Hosts, host: int, server: str) -> None:
    script = processes.start("-c", SUM, f"tcp://{server}:9000", within=hosts.within[host], GT_KEY=KEY)
    assert script.ended(120) == 0 and script.out == "[True, True] fine\n", script.err[-2000:] + "".join(
        p.err[-1000:] for p in processes.all
    )
    for process in reversed(processes.all):
        process.close()


@NEEDS
@pytest.mark.slow
def test_hosts_with_ipv6_alone(processes: Processes) -> None:
    with Hosts(3) as hosts:
        for name, address in zip(hosts.names, hosts.addresses):
            _ip("-n", name, "addr", "del", f"{address}/24", "dev", "card")
        start(processes, hosts, hosts.ipv6[0], "::", {1: [], 2: []})
        sums(processes, hosts, 2, f"[{hosts.ipv6[0]}]")


@NEEDS
@pytest.mark.slow
def test_a_worker_behind_a_router_that_translates_addresses(processes: Processes) -> None:
    """Host 2 is reached through host 1 alone, at the router's address."""
    with Hosts(4) as hosts:
        refused = hosts.behind(1, 2, 7000)
        if refused:
            pytest.skip(f"this kernel does not translate addresses: {refused}")
        server = hosts.addresses[0]
        start(processes, hosts, server, "0.0.0.0", {2: ["--advertise", f"{hosts.addresses[1]}:7000"], 3: []})
        sums(processes, hosts, 3, server)


@NEEDS
@pytest.mark.slow
def test_workers_that_reach_each_other_by_a_second_card(processes: Processes) -> None:
    """Their first cards lead to the dispatcher and the client; their bytes take the cable between them."""
    with Hosts(3) as hosts:
        ends = hosts.second_card(1, 2)
        server = hosts.addresses[0]
        start(processes, hosts, server, "0.0.0.0", {1: ["--advertise", ends[0]], 2: ["--advertise", ends[1]]})
        sums(processes, hosts, 2, server)
        assert hosts.traffic(1) < 600_000 < hosts.traffic(1, "second"), (
            "the piece of the client's, and 240,000 bytes between them"
        )


@NEEDS
@pytest.mark.slow
def test_hosts_with_delay_and_loss(processes: Processes) -> None:
    """Of three hosts with 5 ms between each and the switch, and 1 frame of 100 lost."""
    with Hosts(3) as hosts, hosts.slow(0.005, 0.01) as cables:
        try:
            start(processes, hosts, hosts.addresses[0], "0.0.0.0", {1: [], 2: []})
            sums(processes, hosts, 2, hosts.addresses[0])
        finally:
            out, _ = cables.communicate()
        delivered, lost = map(int, out.split())
        assert lost and delivered > 50 * lost, out


@pytest.mark.skipif(not possible(), reason="takes network namespaces, which this user may not make")
@pytest.mark.parametrize("plain, way", [("", "mail"), ("1", "gloo")])
def test_hosts_that_share_nothing_but_the_network(processes: Processes, plain: str, way: str) -> None:
    """Bytes go between workers, and between client and workers, by TCP, as they find out by themselves; the dispatcher's host
    sees only words."""
    with Hosts(4) as hosts:
        port, server = 9000, hosts.addresses[0]
        made = processes.start(
            "-m", "gt.server", "-p", str(port), "--host", "0.0.0.0", "--expect", "2",
            within=hosts.within[0], GT_KEY=KEY, GT_WORKER_KEY=WORKERS,
        )  # fmt: skip
        joined = ["-m", "gt.worker", "--host", server, "-p", str(port), "--backend", "numpy"]
        asked = {"GT_KEY": KEY, "GT_WORKER_KEY": WORKERS, "GT_PLAIN_COLLECTIVES": plain}
        workers = [processes.start(*joined, within=hosts.within[i], **asked) for i in (1, 2)]
        script = processes.start(
            "-c", PROGRAM + LARGE, f"tcp://{server}:{port}", *(f"tcp://{a}" for a in hosts.addresses[1:3]),
            within=hosts.within[3], GT_KEY=KEY, WAY=way,
        )  # fmt: skip
        assert script.ended(200) == 0, "\n".join(p.err[-2000:] for p in (script, made, *workers))
        assert script.out.endswith("fine\n2 workers, 4194304 bytes\n")
        bytes_seen = [hosts.traffic(i) for i in range(4)]
        assert bytes_seen[0] < 2 << 20 and min(bytes_seen[1:]) > 4 << 20, bytes_seen
        for process in reversed(processes.all):
            process.close()
