"""Users with keys of their own: hostile messages of one leave the values, statistics and settings of another unchanged."""

from __future__ import annotations

from random import Random

import pytest

import gt
from gt.client.scope import HERE, Scope
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


def test_each_user_sees_its_own_work_and_an_administrator_sees_all() -> None:
    with cluster(1, users=USERS, user="alice") as made:
        gt.ones(3).exp().numpy()
        made.session("bob")
        as_client(made, 1)
        gt.ones(1024).sqrt().numpy()
        [own] = gt.debug.get_worker_stats().values()
        assert "sqrt" in own["ops"] and "exp" not in own["ops"] and len(own["shares"]) == 1
        assert [c["user"] for c in gt.debug.clients()] == ["bob"]
        with pytest.raises(GTError, match="no client 1"):
            made.sessions[1].ask("kill", 1)
        made.session("root")
        as_client(made, 2)
        [every] = gt.debug.get_worker_stats().values()
        assert {"sqrt", "exp"} <= set(every["ops"])
        rows = {c["user"]: c for c in gt.debug.clients()}
        assert set(rows) == {"alice", "bob", "root"} and rows["root"]["bytes"] == 0
        as_client(made, 0)
