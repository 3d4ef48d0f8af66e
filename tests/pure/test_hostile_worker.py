"""A worker that means harm ends neither the dispatcher nor other workers by what it says, and changes no value of which it was
given no part."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import gt
from gt.testing import cluster
from gt.transport import messages as m

FAR = (1 << 62, -1, -(1 << 62), 0, 3)
GROUPS = ((), (0, 1), (2,), (0, 2), (0, 1, 2), (7, 1 << 40), (2, 2))
TEXTS = ("", "c0", "nobody", "w0", "\n", "x" * 5000, "h:1", "1 2 3 " + "ab" * 16)


def to_the_dispatcher(r: Random) -> Any:
    number, group, text, who = r.choice(FAR), r.choice(GROUPS), r.choice(TEXTS), r.choice(("c0", "nobody", ""))
    deep: Any = 1
    for _ in range(r.choice((0, 3, 700))):
        deep = [deep]
    return r.choice((
        m.Done(who, number, (number, 5)), m.Arrived(who, number), m.Progress(who, r.choice((-5, -(1 << 62)))),
        m.Answer(number, deep), m.Begun(number, ((group, number),)), m.Refuse("nobody", text), m.Note(text, number, who),
        m.Store(m.Reached(text, text, text)), m.Join(m.VERSION, "", text, text, text, text, number, f"ipc://{text}"),
        m.Hello(m.VERSION, "", text, number), m.Batch(number, (), [(1, 1, 1)], ((number, 1, (0, 2)),)), m.Ask(number, "stats"),
        m.Skip(number, ()), m.Drop("c0", number), m.Run("c0", 1, (), [(1, 1, 1.0)]), m.Peers(()), m.Configure({"s": deep}),
        m.Welcome(text, number), m.Upload("c0", number, (0, 2)), m.Value(number, (0, 2), (0,), (2,), 1),
        m.Attached(2, True, who),
    ))  # fmt: skip


def to_a_worker(r: Random) -> tuple[Any, tuple]:
    number, group, sender = r.choice(FAR), r.choice(GROUPS), r.choice((2, 2, 2, 0, 1, -1, 99))
    frames = r.choice(((), (b"",), (bytes(16),), (b"a", b"b")))
    return r.choice((
        m.Piece(sender, r.choice(("c0", "nobody")), number), m.InputFailed(sender, group, number, "RemoteError", "odd", 1),
        m.StallQuery(sender, group, number), m.Noted(sender, group, number), m.Ways(sender, group, ("memory", "odd")),
        m.Aborted(sender, group, number, "RemoteError", "odd", 1), m.Run("c0", 1, (), [(1, 1, 1.0)]), m.Drop("c0", number),
        m.Skip(number, ((group, number),)), m.Peers(()), m.Welcome("w9", 9), m.Ask(number, "stats"),
        m.Upload("c0", number, (0, 2)), m.Upload("w2", number, (0, 2)), m.Attach("c0", b"t"), m.Release(number),
    )), frames  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")  # it may tell clients what it likes
def test_what_a_hostile_worker_says_ends_nobody_and_changes_no_value_that_it_has_no_part_in() -> None:
    r = Random(1)
    with cluster(2, "numpy") as made:
        gt.register_config("halves", gt.SignalConfig(gt.ShardConfig(axis=0, workers=[0, 1])))
        with gt.signal("halves"):
            x = gt.ones(4, 4)
        x.numpy()
        made.names.append("w2")
        heard: list[Any] = []
        made.hub.parties["w2"] = lambda mail: heard.append(mail.message) or []
        made.hub.post("w2", m.Mail("dispatcher", m.Join(m.VERSION, "", "w2", "numpy", "cpu", "here", 1, "ipc://w2")))
        made.hub.deliver()
        assert isinstance(heard[0], m.Welcome) and heard[0].index == 2
        for step in range(4000):
            if step % 2:
                made.hub.post("w2", m.Mail("dispatcher", to_the_dispatcher(r)))
            else:
                message, frames = to_a_worker(r)
                made.hub.post("w2", m.Mail(r.choice(("w0", "w1")), message, frames))
            made.hub.deliver()
            if step % 200 == 0:
                assert (x * (step + 1)).sum(0).tolist() == [4.0 * (step + 1)] * 4
                made.dispatcher.tables.check()
        assert made.dispatcher.tables.dropped > 500 and all(w.dropped > 200 for w in made.workers)
        for mail in made.dispatcher.lose("w2", "it was found out"):
            made.hub.post("dispatcher", mail)
        made.hub.deliver()
        assert x.sum().item() == 16.0 and gt.debug.get_worker_stats().keys() == {"w0", "w1"}
        made.names.pop()
