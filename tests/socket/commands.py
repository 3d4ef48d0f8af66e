"""The `gt` command in tests of pools."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from processes import Processes

from gt.cli import main

HOLDS = """
import sys
import numpy as np
import gt

gt.connect()
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
a = np.arange(64, dtype="f4").reshape(8, 8)
with gt.signal("rows"):
    x = gt.from_numpy(a)
y = gt.from_numpy(a)
total = (x @ y).sum().item()
print("holds", flush=True)
for _ in sys.stdin:
    assert (x.numpy() == a).all() and (y.numpy() == a).all()
    assert (x @ y).sum().item() == total
    print("still", len(gt.debug.get_worker_stats()), flush=True)
"""


class Commands:
    """The `gt` command, with a folder of pools of its own: as a process, or called here, which costs less."""

    def __init__(self, processes: Processes, pools: Path, capsys: pytest.CaptureFixture) -> None:
        self.processes, self.pools, self.capsys = processes, pools, capsys

    def process(self, *args: str) -> str:
        made = self.processes.start("-m", "gt", *args, GT_POOLS=str(self.pools), GT_COLLECTIVES="mail")
        assert made.ended() == 0, f"gt {' '.join(args)}: {made.out} {made.err}"
        return made.out

    def __call__(self, *args: str, status: int = 0) -> str:
        self.capsys.readouterr()
        found = main(list(args))
        out, err = self.capsys.readouterr()
        assert found == status, f"gt {' '.join(args)}: {out} {err}"
        return err if status else out

    def status(self, name: str = "") -> dict:
        return json.loads(self("status", "--json", *([name] if name else [])))

    def key(self, name: str) -> tuple[str, str]:
        found = json.loads((self.pools / f"{name}.json").read_text())
        return found["key"], found["worker_key"]


def shown(pools: Path) -> str:
    """All that others can see of processes of this user, and all that processes wrote."""
    lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    return "\n".join(lines + [p.read_text() for p in pools.glob("*.logs/*")])
