"""`gt doctor` names the user's lines that slow a program, and prints nothing about a fast program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import gt
from gt.backends.facts import Missing
from gt.backends.registry import Registry
from gt.backends.rows import ROWS, BackendRow
from gt.testing import cluster
from gt.transport import events as e
from gt.watch.doctor import Finding, diagnose, text
from gt.watch.events import Collective, OpActivity, Recording
from gt.watch.host import PACKAGES, engines, report

pytestmark = pytest.mark.default("GT_TRACE", "GT_WORKER_BATCH_SIZE")


def sorts(found: list[Finding]) -> dict[str, Finding]:
    return {f.sort: f for f in found}


def recording(*items: object) -> Recording:
    return Recording(list(items))  # type: ignore[arg-type]


def work(start: float, seconds: float, worker: str = "w0") -> OpActivity:
    return OpActivity(worker, "c", "matmul", "matmul", start, seconds)


def test_reads_are_counted_with_their_share_of_the_run() -> None:
    waits = [e.Waited("c", float(i), 0.5, "train.py:7", 4) for i in range(4)]
    [found] = diagnose(recording(work(0.0, 4.0), *waits))
    assert (found.sort, found.line, found.share) == ("reads", "train.py:7", 0.5)
    assert "4 reads" in found.text and "50% of the run" in found.text


def test_idle_workers_are_named_with_their_share() -> None:
    [found] = diagnose(recording(work(0.0, 4.0), work(0.0, 1.0, "w1")))
    assert found.sort == "idle" and found.share == 0.75 and "w1 was idle for 75%" in found.text


def test_the_same_array_sent_again_and_again_is_found_and_others_are_not() -> None:
    same = [e.Loaded("c", 0.0, 0.1, "data.py:3", 1 << 20, "same") for _ in range(5)]
    others = [e.Loaded("c", 0.0, 0.1, "data.py:4", 1 << 20, f"other {i}") for i in range(5)]
    [found] = diagnose(recording(work(0.0, 4.0), *same, *others))
    assert (found.sort, found.line) == ("uploads", "data.py:3") and "1.0 MB was sent 5 times" in found.text


def test_gathers_that_a_rule_avoids_are_counted_once_for_all_workers_and_others_are_none() -> None:
    made = recording(work(0.0, 4.0), work(0.0, 4.0, "w1"))
    for i in range(4):
        for w in ("w0", "w1"):
            gather = Collective(w, "c", "all_gather", "collective", float(i), 0.25, 9, nbytes=64)
            made.items += [gather, replace(gather, rule="matmul takes it")]
            made.items.append(Collective(w, "c", "all_reduce", "collective", float(i), 0.25, 9))
    made.reader.lines["c", 9] = "model.py:12"
    [found] = diagnose(made)
    assert (found.sort, found.line, found.share) == ("gathers", "model.py:12", 0.25) and found.text.startswith("4 times")
    assert found.advice.startswith("matmul takes it")


def gathered(step: Callable[[gt.Tensor, gt.Tensor], gt.Tensor], steps: int) -> tuple[dict[str, Finding], int]:
    """The doctor's findings in a loop over a tensor sharded along its rows, and how many tensors were gathered."""
    with cluster(2, engine="numpy"):
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
        with gt.signal("rows"):
            x = gt.tensor(np.eye(64, dtype="float32"))
        w = gt.tensor(np.ones((64, 64), "float32"))
        with gt.debug.doctor(show=False) as doctor:
            for _ in range(steps):
                step(x, w).sum().item()
    done = [i for i in doctor.recording.items if isinstance(i, Collective) and i.name == "all_gather"]
    return sorts(doctor.findings), len(done) // 2


@pytest.mark.parametrize("steps", [5, 60])  # one by one, and replayed
def test_a_gather_names_the_rule_by_which_its_tensor_could_have_stayed_sharded(steps: int) -> None:
    found, gathers = gathered(lambda x, w: w @ x, steps)
    told = found["gathers"]
    assert gathers == steps and told.text.startswith(f"{steps} times"), (gathers, found)
    rule = "matmul takes its operand 2 sharded if its operands are laid out as (Replicate(), Shard(1))"
    assert told.advice.startswith(rule) and told.line.startswith("test_doctor.py:")


def test_gathers_that_no_rule_avoids_reads_and_reductions_are_left_out() -> None:
    found, gathers = gathered(lambda x, w: gt.linalg.inv(x), 5)
    assert gathers == 5 and "gathers" not in found, "the inverse of a matrix needs all of it"
    found, gathers = gathered(lambda x, w: x @ x, 5)
    assert gathers == 5 and "gathers" not in found, "with its left operand as it is, no rule shards the right one"
    found, gathers = gathered(lambda x, w: x @ w, 5)
    assert gathers == 0 and "gathers" not in found, "a batch is sharded, and its sum is reduced"


def test_broken_traces_compilations_and_stalls_are_told() -> None:
    traced = e.Traced("c", 1.0, 1, 10, 100, (("diverged", 30, "train.py:9"), ("a value was read", 1, "")))
    compiled = [e.Compiled("c", 1.0, 0.5, "a trace: compiled") for _ in range(4)]
    stalled = e.Stalled("c", 1.0, "all_reduce of workers [0, 1] waits", "w0", 5)
    found = sorts(diagnose(recording(work(0.0, 4.0), traced, *compiled, stalled)))
    assert found.keys() == {"traces", "compilations", "stalls"}
    assert found["traces"].line == "train.py:9" and "30 times: diverged (10 of 41" in found["traces"].text
    assert "4 programs were compiled in 2.0 s" in found["compilations"].text


def test_nothing_stands_out_in_a_run_that_nothing_slows() -> None:
    assert "Nothing stands out." in text(recording(work(0.0, 4.0)))


def test_a_block_of_a_script_is_diagnosed_at_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    array = np.ones((64, 64), "float32")
    with cluster(1), gt.debug.doctor() as seen:
        for _ in range(6):
            x = gt.tensor(array)
            (x + 1.0).sum().item()
    found = sorts(seen.findings)
    assert found["uploads"].line.startswith("test_doctor.py:") and "sent 6 times" in found["uploads"].text
    assert found["reads"].line.startswith("test_doctor.py:") and "6 reads" in found["reads"].text
    assert int(found["reads"].line.partition(":")[2]) == int(found["uploads"].line.partition(":")[2]) + 1
    assert "the same array" in capsys.readouterr().out


def test_the_host_report_names_versions_and_missing_packages_with_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.watch.host.version", lambda package: "" if package == "textual" else "1.2.3")
    monkeypatch.setattr("gt.watch.host.devices", lambda: iter(()))
    found = report()
    assert "missing: gt top" in found and all(package in found for package in PACKAGES) and "1.2.3" in found


def test_the_host_report_names_the_engines_and_why_others_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = BackendRow("gone", "Gone", lambda: Missing("no driver is installed"), "gt.worker.engine.numpy:make")
    made = Registry((*[row for row in ROWS if row.name in ("numpy", "cpu")], gone))
    monkeypatch.setattr("gt.watch.host.registry", lambda: made)
    monkeypatch.setattr(made, "search", lambda: None)
    said = dict(engines())
    assert said == {"engines": "cpu, numpy (default: numpy)", "engine gone": "missing: no driver is installed"}
