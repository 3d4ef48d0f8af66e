"""The files of gt.utils.tensorboard, read back by tensorboard's own reader: the same events as PyTorch's writer writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt

pytest.importorskip("tensorboard", reason="pip install tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: E402
from torch.utils.tensorboard import SummaryWriter as TorchWriter  # noqa: E402

from gt.utils.tensorboard import SummaryWriter  # noqa: E402

IMAGE = np.random.default_rng(0).random((3, 5, 4), dtype=np.float32)
NUMBERS = np.random.default_rng(1).standard_normal(60).astype(np.float32)

CALLS: dict[str, Callable[[Any, Any], None]] = {
    "scalar": lambda w, t: w.add_scalar("loss", (t(NUMBERS) ** 2).mean(), 3),
    "scalar of an integer": lambda w, t: w.add_scalar("n", t(np.array(7)), global_step=4, new_style=True),
    "scalars": lambda w, t: w.add_scalars("both", {"a": t(np.float32(1.5)), "b": 2.0}, 1),
    "tensor": lambda w, t: w.add_tensor("weights", t(IMAGE), 2),
    "tensor of 16 bits": lambda w, t: w.add_tensor("weights", t(IMAGE).bfloat16(), global_step=2),
    "histogram": lambda w, t: w.add_histogram("weights", t(NUMBERS), 2, bins="auto"),
    "histogram of integers": lambda w, t: w.add_histogram("ids", t(np.arange(9)), 2),
    "image": lambda w, t: w.add_image("one", t(IMAGE), 1),
    "image in rows": lambda w, t: w.add_image("rows", t(IMAGE[0]), 1, dataformats="HW"),
    "images": lambda w, t: w.add_images("all", t(np.stack([IMAGE, IMAGE / 2])), 1),
    "text": lambda w, t: w.add_text("note", "a text", 5),
    "curve": lambda w, t: w.add_pr_curve("pr", t(NUMBERS > 0), t(1 / (1 + np.exp(-NUMBERS))), 2),
    "mesh": lambda w, t: w.add_mesh("points", t(NUMBERS.reshape(1, 20, 3)), global_step=1),
    "hyperparameters": lambda w, t: w.add_hparams({"lr": 0.1, "n": 3}, {"acc": t(np.float32(0.5))}, run_name="run"),
    "of a parameter": lambda w, t: w.add_histogram("p", t(NUMBERS).requires_grad_(True), 0),
    "embedding": lambda w, t: w.add_embedding(t(NUMBERS.reshape(20, 3)), metadata=list(range(20)), tag="e", global_step=1),
}  # fmt: skip


def events(folder: Path) -> list[tuple[Any, ...]]:
    """Every event below a folder: its step and summaries, without the time of writing."""
    found: list[tuple[Any, ...]] = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            if event.HasField("summary"):
                text = [(v.tag, v.SerializeToString()) for v in event.summary.value if "session_end" not in v.tag]
                text = [(tag, b"" if "session" in tag else raw) for tag, raw in text]  # its start is a time
                found.append((str(path.parent.relative_to(folder)), event.step, text))
    return found


def other_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "tfevents" not in p.name}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_events_are_those_of_pytorchs_writer(name: str, tmp_path: Path) -> None:
    with gt.testing.cluster():
        for folder, writer, make in (("gt", SummaryWriter, gt.tensor), ("torch", TorchWriter, torch.tensor)):
            with writer(str(tmp_path / folder)) as opened:
                CALLS[name](opened, make)
    own = events(tmp_path / "gt")
    assert own == events(tmp_path / "torch")
    assert own or other_files(tmp_path / "gt"), "something is written"
    assert other_files(tmp_path / "gt") == other_files(tmp_path / "torch")


def test_tensorboard_reads_the_events_of_a_training_loop(tmp_path: Path) -> None:
    losses = []
    with gt.testing.cluster(), SummaryWriter(tmp_path) as writer:
        assert writer.log_dir == writer.get_logdir() == tmp_path
        model = gt.nn.Linear(3, 1)
        optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            loss = (model(gt.ones(2, 3)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss, step)
            writer.add_histogram("weight", model.weight, step)
            losses.append(loss.item())
        writer.flush()
    read = EventAccumulator(str(tmp_path)).Reload()
    assert read.Tags()["scalars"] == ["loss"] and read.Tags()["histograms"] == ["weight"]
    assert [e.step for e in read.Scalars("loss")] == [0, 1, 2, 3]
    assert [e.value for e in read.Scalars("loss")] == pytest.approx(losses)
    assert read.Histograms("weight")[0].histogram_value.num == 3
