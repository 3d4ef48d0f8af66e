"""Users with keys of their own: hostile messages of one leave the values, statistics and settings of another unchanged."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.dispatcher.tables import KindPlans
from gt.dispatcher.users import User, Users
from gt.errors import GTError, ProtocolError
from gt.testing import cluster
from gt.testing.cluster import Cluster
from gt.testing.hostile import Hostile, record
from gt.transport import messages as m

USERS = Users({"alice": User("alice"), "bob": User("bob"), "root": User("root", administrator=True)})


def as_client(made: Cluster, number: int) -> None:
    HERE.scope = Scope(made.sessions[number])


def against(made: Cluster, hostile: Hostile, messages: int) -> None:
    """Bob sends messages that name Alice's ids, kinds and name, and whatever else."""
    alice = made.dispatcher.tables.clients["c0"]
    ids, random = [*alice.entries] or [1], Random(7)
    wire = (0, 3)
    made.hub.parties.setdefault("bob", lambda mail: [])
    made.roles["bob"] = "user bob"
    made.hub.post("bob", m.Mail("dispatcher", m.Hello(m.VERSION, "", "here", 1)))
    for n in range(messages):
        id = random.choice(ids)
        for message in (
            hostile.message(), m.Batch(n, (), [(0, id)]), m.Batch(n, (), [], ((n, id, wire),)), m.Ask(n, "placement", [id]),
            m.Batch(n, (), [(random.choice([*alice.uses]), 900 + n, id, id)]), m.Ask(n, "kill", alice.number),
            m.Ask(n, "stats"),
            m.Configure({"mine": {"mesh": None, "axes": [None], "workers": [0]}}),
        ):  # fmt: skip
            try:
                m.decode(m.encode(message))
            except (OverflowError, TypeError, RecursionError, ProtocolError):
                continue  # it cannot be sent, or is refused before anyone handles it
            if isinstance(message, m.Bye):
                continue
            made.hub.post("bob", m.Mail("dispatcher", message))
            for worker in ("w0", "w1"):  # and to workers, in its own name and in Alice's
                made.hub.post("bob", m.Mail(worker, m.Upload("c0", id, wire), (bytes(12),)))
                made.hub.post("bob", m.Mail(worker, m.Run("c0", 1, (), [(0, id)])))
                made.hub.post("bob", m.Mail(worker, m.Drop("c0")))
        made.hub.deliver()


def test_hostile_messages_of_one_user_leave_another_s_values_alone() -> None:
    sessions = record()
    with cluster(2, users=USERS, user="alice") as made:
        gt.register_config("mine", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        with gt.signal.context("mine"):
            kept = [gt.arange(6).float() + n for n in range(8)]
            for n, x in enumerate(kept):
                assert x.tolist() == [float(i + n) for i in range(6)]
        before = str(kept[0].placement)
        against(made, Hostile(3, sessions), 120)
        for n, x in enumerate(kept):
            assert (x * 2.0).tolist() == [2.0 * (i + n) for i in range(6)]
        assert str(kept[0].placement) == before and "Shard" in before
        assert made.dispatcher.tables.dropped and all(w.dropped for w in made.workers)
        if "bob" in made.dispatcher.tables.clients:
            made.dispatcher.lose("bob", "its end")
            for worker in made.workers:
                worker.spaces.pop("bob", None)


@pytest.mark.default("GT_TRACE")
def test_ids_kinds_programs_signals_and_configurations_are_each_client_s_own() -> None:
    """Two users whose sessions give the same numbers and names, step by step in turns, to other tensors, ops and settings."""
    held: list[list[gt.Tensor]] = [[], []]
    kinds: list[dict[int, str]] = []
    with cluster(2, users=USERS, user="alice") as made:
        made.session("bob")
        ops, rows, axes = ("tanh", "arctan"), ("tanh", "atan"), (0, 1)
        for n, axis in enumerate(axes):
            as_client(made, n)
            gt.register_config("mine", gt.SignalConfig(shard=gt.ShardConfig(axis=axis)))
        for step in range(30):
            for n in (0, 1):
                as_client(made, n)
                with gt.signal.context("mine"):
                    x = gt.full((4, 6), 0.25 * (n + 1))
                    for _ in range(5):
                        x = getattr(x * 0.5, ops[n])() + step
                held[n].append(x)
                getattr(((gt.ones(4) * 2.0 + 1.0) - 0.5) * x.numel(), ops[n])().sum().item()
        for n, name in enumerate(ops):
            as_client(made, n)
            right = np.full((4, 6), 0.25 * (n + 1), "float32")
            for _ in range(5):
                right = getattr(np, name)(right * np.float32(0.5)) + np.float32(29)
            np.testing.assert_allclose(held[n][-1].numpy(), right, rtol=1e-5)
            assert f"Shard({axes[n]})" in str(held[n][-1].placement)
            seen = "\n".join(map(str, gt.debug.programs()))
            assert rows[n] in seen and rows[1 - n] not in seen
            uses = made.dispatcher.tables.clients[f"c{n}"].uses
            kinds.append({number: use.kind.row.name for number, use in uses.items() if isinstance(use, KindPlans)})
        ids = [{x.handle.id for x in of} for of in held]
        assert ids[0] & ids[1], "both gave the same ids"
        shared = kinds[0].keys() & kinds[1].keys()
        assert any(kinds[0][number] != kinds[1][number] for number in shared), "and the same numbers to other kinds"
        as_client(made, 0)


def test_each_user_sees_its_own_work_and_an_administrator_sees_all() -> None:
    users = Users({**USERS.named, "alice": User("alice", memory=1 << 20)})
    with cluster(1, users=users, user="alice") as made:
        gt.ones(3).exp().numpy()
        with pytest.raises(gt.OutOfMemory):
            gt.ones(1 << 20).sum().item()
        [own] = gt.debug.get_worker_stats().values()
        assert (own["failures"], own["over_quota"]) == (2, 1), "the tensor, and the sum of it"
        made.session("bob")
        as_client(made, 1)
        gt.ones(1024).sqrt().numpy()
        [own] = gt.debug.get_worker_stats().values()
        assert own["failures"] == own["over_quota"] == 0 and "runs" not in own, "alice's are hers"
        assert "sqrt" in own["ops"] and "exp" not in own["ops"] and len(own["shares"]) == 1
        assert [c["user"] for c in gt.debug.clients()] == ["bob"]
        with pytest.raises(GTError, match="no client 1"):
            made.sessions[1].ask("kill", 1)
        made.session("root")
        as_client(made, 2)
        [every] = gt.debug.get_worker_stats().values()
        assert {"sqrt", "exp"} <= set(every["ops"]) and every["failures"] == 2 and every["runs"] > 0
        rows = {c["user"]: c for c in gt.debug.clients()}
        assert set(rows) == {"alice", "bob", "root"} and rows["root"]["bytes"] == 0
        as_client(made, 0)
