"""A sum is reduced in place only where nobody else sees its memory."""

from __future__ import annotations

from processes import Processes


def test_views_and_copies_of_terms_keep_their_values(processes: Processes) -> None:
    script = processes.script(
        """
        import sys, numpy as np, gt
        gt.connect(sys.argv[1])
        gt.register_config("all", gt.SignalConfig(gt.ShardConfig(axis=0)))
        with gt.signal("all"):
            x = gt.from_numpy(np.arange(24, dtype="f4").reshape(4, 6))
        want = np.arange(24, dtype="f4").reshape(4, 6).sum(0)
        for other in (lambda t: t.reshape(2, 3), lambda t: t.to(gt.float32), lambda t: gt.signal.tensor(t, name="nosuch")):
            t = x.sum(axis=0)          # terms
            u = other(t)               # the same memory, perhaps
            assert (t.numpy() == want).all(), t.numpy()
            assert (u.numpy().reshape(-1) == want).all(), u.numpy()
            assert (t.numpy() == want).all()
        print("fine")
        """,
        processes.pool(2, "pytorch"),
    )
    assert script.ended(200) == 0, script.err[-2000:]
    assert script.out == "fine\n"
