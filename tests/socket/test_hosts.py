"""A dispatcher, workers and a client on hosts of their own: nothing is shared but the network."""

from __future__ import annotations

import pytest
from hosts import Hosts, possible
from processes import Processes
from test_sharded import PROGRAM

KEY, WORKERS = "a key of these tests", "the key of their workers"
LARGE = """
import zmq
from gt.client.here import here
link = here().session.link
assert len(link.data) == 2 and not any(link.sharing.values()) and not link.shares
ends = [s.getsockopt(zmq.LAST_ENDPOINT).decode() for s in link.data.values()]
assert sorted(e.rpartition(":")[0] for e in ends) == sys.argv[2:], ends
a = np.arange(1 << 20, dtype="f4").reshape(1024, 1024)
with gt.signal("batch"):
    t = gt.from_numpy(a)                                # a half to each
turned = gt.signal.tensor(t, name="columns")            # half of each half to the other
assert (turned.numpy() == a).all()
names = [s["engine"] for s in gt.debug.get_worker_stats().values()]
print(len(names), "workers,", a.nbytes, "bytes")
"""


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
