"""Pools of real processes: `gt up`, `gt status`, `gt scale`, `gt down` and `gt.pool`."""

from __future__ import annotations

import stat
from pathlib import Path

from commands import HOLDS, Commands, shown
from processes import Processes, until


def test_a_pool_is_started_found_scaled_with_its_values_and_ended(processes: Processes, gt_command: Commands) -> None:
    said = gt_command.process("up", "local", "--workers", "2", "--backend", "numpy", "--name", "mine")
    file = gt_command.pools / "mine.json"
    assert "gt.connect('mine')" in said and stat.S_IMODE(file.stat().st_mode) == 0o600
    script = processes.start("-c", HOLDS, GT_POOLS=str(gt_command.pools)).wait_for("holds")
    gt_command("scale", "3")
    until(lambda: len(gt_command.status()["joined"]) == 3, what="a third worker")
    script.go()
    script.wait_for("still 3")
    gt_command("scale", "1")  # the two that leave pass on their tensors
    script.go()
    script.wait_for("still 1")
    found = gt_command.status()
    assert [m["state"] for m in found["members"]] == ["running"] * 2 and list(found["joined"]) == ["mine-0"]
    assert found["workers"] == 1 and found["release"]
    for key in gt_command.key("mine"):
        assert key not in said and key not in shown(gt_command.pools)
    assert "choose another --name" in gt_command("up", "local", "--name", "mine", status=1)
    gt_command("down", "mine")
    script.popen.stdin.close()  # type: ignore[union-attr]
    assert script.ended() == 0, script.err
    until(lambda: not processes.running(), what="the end of all of the pool")
    assert not file.exists() and "no pool is known" in gt_command("status", status=1)


def test_a_pool_for_a_block_ends_with_it_and_with_its_process(processes: Processes, tmp_path: Path) -> None:
    code = """
    import gt
    for name in ("first", "second"):
        with gt.pool("local", workers=1, backend="numpy", name=name) as pool:
            assert (gt.ones(3, 3) + 1).sum().item() == 18
            assert [m.state for m in pool.members()] == ["running"] * 2
            print(name, gt.clusters.pool_file.names(), flush=True)
            if name == "second":
                input()
    """
    script = processes.script(code, GT_POOLS=str(tmp_path / "pools"), GT_BACKEND="").wait_for("second ['second']")
    assert len(processes.running()) == 3, "the first pool has ended"
    script.kill()
    until(lambda: not processes.running(), what="the end of the pool with its process")
