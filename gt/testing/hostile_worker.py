"""Messages of a hostile or faulty worker, to the dispatcher and to other workers. The same seed gives the same messages."""

from __future__ import annotations

from random import Random
from typing import Any

import gt
from gt.testing.cluster import Cluster, cluster
from gt.testing.fuzz_random import FuzzRandom
from gt.transport import messages as m

FAR = (1 << 62, -1, -(1 << 62), 0, 3)
GROUPS = ((), (0, 1), (2,), (0, 2), (0, 1, 2), (7, 1 << 40), (2, 2))
TEXTS = ("", "c0", "nobody", "w0", "\n", "x" * 5000, "h:1", "1 2 3 " + "ab" * 16)
NAME = "w2"  # of the hostile worker


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
        m.SmallValues((m.Value(number, (0, 2), (0,), (2,), 1, None, b""),)),
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


def join(made: Cluster) -> None:
    """The hostile worker joins two others."""
    heard: list[Any] = []
    made.names.append(NAME)
    made.hub.parties[NAME] = lambda mail: heard.append(mail.message) or []  # type: ignore[func-returns-value]
    made.hub.post(NAME, m.Mail("dispatcher", m.Join(m.VERSION, "", NAME, "numpy", "cpu", "here", 1, f"ipc://{NAME}")))
    made.hub.deliver()
    assert isinstance(heard[0], m.Welcome) and heard[0].index == 2
    heard.clear()


def fuzz(seed: int, count: int, restart: Any = lambda: None) -> int:
    """Send messages of a hostile worker to a dispatcher and two workers, on which a client computes: nobody may end, and the
    client reads right values. `restart` is called before each. Returns their number."""
    r = FuzzRandom(seed)
    with cluster(2, "numpy") as made:
        gt.register_config("halves", gt.SignalConfig(gt.ShardConfig(axis=0, workers=[0, 1])))
        with gt.signal.context("halves"):
            x = gt.ones(4, 4)
        x.numpy()
        join(made)
        for step in range(count):
            restart()
            if step % 2:
                made.hub.post(NAME, m.Mail("dispatcher", to_the_dispatcher(r)))
            else:
                message, frames = to_a_worker(r)
                made.hub.post(NAME, m.Mail(r.choice(made.names[:2]), message, frames))
            made.hub.deliver()
            if step % 200 == 0:
                assert (x * (step + 1)).sum(0).tolist() == [4.0 * (step + 1)] * 4
                made.dispatcher.tables.check()
        dropped = made.dispatcher.tables.dropped, *(w.dropped for w in made.workers)
        assert min(dropped) > count // 20, f"{dropped} messages were refused"
        for mail in made.dispatcher.lose(NAME, "it was found out"):
            made.hub.post("dispatcher", mail)
        made.hub.deliver()
        assert x.sum().item() == 16.0 and gt.debug.get_worker_stats().keys() == {"w0", "w1"}
        made.names.pop()
    return count
