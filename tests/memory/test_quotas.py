"""Memory quotas: an op above one raises OutOfMemory with its line, and other clients do not notice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.dispatcher.users import User, Users
from gt.errors import OutOfMemory
from gt.testing import cluster
from gt.transport.messages import Batch, Failed, KindDef, Mail
from gt.worker.quotas import LEAST, held

MB = 1 << 20
ENGINES = ["numpy", "pytorch"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tensor_over_the_quota_is_out_of_memory_on_the_line_that_made_it(engine: str) -> None:
    with cluster(1, engine, memory=MB) as made:
        kept = gt.ones(100, 1024)  # 400 KB
        lost, line = gt.ones(256, 1024) + 0.0, inspect.currentframe().f_lineno  # type: ignore[union-attr]
        after = lost * 2.0
        for tensor in (lost, after):
            with pytest.raises(OutOfMemory, match=f"1,048,576(.|\n)*test_quotas.py.*line {line}"):
                tensor.numpy()
        assert kept.sum().item() == 102400.0 and made.workers[0].quotas.exceeded
        del lost, after
        assert (kept + 1.0).sum().item() == 204800.0, "a refused result takes no room"


@pytest.mark.parametrize("engine", ENGINES)
def test_freed_tensors_and_views_count_nothing(engine: str) -> None:
    with cluster(1, engine, memory=MB):
        x = gt.ones(64, 1024)  # 256 KB
        views = [x.T, x[:50], x.reshape(-1), x.reshape(1024, 64)]
        for _ in range(20):
            x = x + 1.0
        assert x[0, 0].item() == 21.0 and views[0].shape == (1024, 64)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("copy", [lambda x: x.T.reshape(-1), lambda x: x.double(), lambda x: x.expand(2, 64, 1024).reshape(-1)],
                         ids=["reshape", "cast", "expand"])  # fmt: skip
def test_copies_that_ops_make_which_may_give_views_count(engine: str, copy: Callable[[gt.Tensor], gt.Tensor]) -> None:
    quota = MB + 1024
    with cluster(1, engine, memory=quota) as made:
        x = gt.ones(64, 1024)  # 256 KB
        kept = [copy(x) for _ in range(20)]
        with pytest.raises(OutOfMemory):
            kept[-1].sum().item()
        worker = made.workers[0]
        assert MB // 2 < held(worker.spaces.values(), worker.engine) <= quota
        assert x.sum().item() == 65536.0 and x.T[0].sum().item() == 64.0
        del kept
        assert copy(x)[:3].sum().item() in (3.0, 3072.0)


def test_a_copy_in_the_place_of_its_operand_counts() -> None:
    """So no client of ours writes it."""
    with cluster(1, "numpy", memory=MB) as made:
        wire = (gt.float32.code, 64, 1024)
        kinds = (
            KindDef(1, "full", ((-3,),), ((64, 1024), gt.float32.code)), KindDef(2, "expand", (wire,), ((8, 64, 1024),)),
            KindDef(3, "reshape", ((wire[0], 8, 64, 1024),), ((8 * 64 * 1024,),)),
        )  # fmt: skip
        code = [(1, 1, 1.0), (2, 1, 1), (3, 1, 1)]
        name = made.sessions[0].name
        made.hub.post(name, Mail("dispatcher", Batch(1, kinds, code, ((9, 1, (wire[0], 8 * 64 * 1024)),))))
        heard: list[Any] = []
        made.hub.parties[name] = lambda mail: heard.append(mail.message) or []
        made.hub.deliver()
        assert [type(m) for m in heard] == [Failed] and heard[0].error == "OutOfMemory"


@pytest.mark.parametrize("engine", ENGINES)
def test_many_small_tensors_fill_a_quota_too(engine: str) -> None:
    with cluster(1, engine, memory=MB):
        kept = [gt.ones(100) * n for n in range(2700)]  # 400 bytes each
        with pytest.raises(OutOfMemory):
            kept[-1].numpy()
        assert kept[5].tolist() == [5.0] * 100
        del kept[100:]
        assert (kept[7] + 1.0).tolist() == [8.0] * 100


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tensor_of_four_bytes_counts_as_the_block_that_a_device_gives_it(engine: str) -> None:
    with cluster(1, engine, memory=MB) as made:
        kept = [gt.tensor(1.0) * n for n in range(MB // LEAST + 100)]
        with pytest.raises(OutOfMemory):
            kept[-1].item()
        assert kept[5].item() == 5.0 and gt.debug.clients()[0]["bytes"] <= MB
        assert len(made.workers[0].spaces[made.sessions[0].name].table) <= 2 * MB // LEAST


@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "uploads"])
def test_bytes_that_a_client_sends_count(shares: bool) -> None:
    with cluster(1, "numpy", shares, memory=MB):
        big = gt.tensor(np.ones((512, 1024), np.float32))
        with pytest.raises(OutOfMemory):
            big.sum().item()
        assert gt.tensor(np.ones(8, np.float32)).sum().item() == 8.0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_trainer_whose_steps_repeat_stays_within_its_quota(engine: str) -> None:
    with cluster(1, engine, memory=2 * MB):
        model = gt.nn.Linear(128, 128)  # 64 KB, and twice that for Adam
        optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
        x = gt.ones(64, 128)
        for _ in range(40):
            loss = (model(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.1
        with pytest.raises(OutOfMemory):
            gt.ones(4, 128, 1024).sum().item()


def test_the_clients_of_a_user_share_its_quota_and_others_notice_nothing() -> None:
    users = Users({"alice": User("alice", memory=MB), "bob": User("bob")})
    with cluster(1, users=users, user="alice") as made:
        first = gt.ones(200, 1024)  # 800 KB
        assert first.sum().item() == 204800.0
        sessions = [made.session("alice"), made.session("bob")]
        found = []
        for session in sessions:
            HERE.scope = Scope(session)
            x = gt.ones(100, 1024)
            try:
                found.append(x.sum().item())
            except OutOfMemory as refused:
                found.append("user alice" in str(refused))
            del x
        assert found == [True, 102400.0]
        HERE.scope = Scope(made.sessions[0])
        del first
        made.settle()
        HERE.scope = Scope(sessions[0])
        assert gt.ones(100, 1024).sum().item() == 102400.0, "room that another client of the user gave back"
        HERE.scope = Scope(made.sessions[0])


def test_a_collective_over_a_quota_is_carried_out_and_later_ops_are_refused() -> None:
    with cluster(2, memory=MB):
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        with gt.signal.context("rows"):
            x = gt.ones(256, 700)  # 700 KB, half of it on each
        whole = x @ gt.ones(700, 700).T.sum(0)
        assert whole.shape == (256,) and float(x.sum().item()) == 179200.0
