"""Messages of a client that frees very many tensors at once."""

from __future__ import annotations

from typing import Any

import gt
from gt.client.scope import HERE
from gt.client.session import LONGEST
from gt.program.code import free
from gt.transport.messages import Batch


def test_more_instructions_than_a_message_may_have_go_in_several() -> None:
    with gt.testing.cluster(1, engine="numpy"):
        x, session = gt.ones(3), HERE.scope.session
        x.tolist()
        link, sent = session.link, list[Any]()
        send = link.send
        link.send = lambda message: (sent.append(message), send(message))[1]  # type: ignore[method-assign]
        session.code.extend([free(1_000_000 + i) for i in range(2 * LONGEST + 5)])
        assert (x * 2 + 1).tolist() == [3, 3, 3]
    code = [len(message.code) for message in sent if isinstance(message, Batch)]
    assert max(code) == LONGEST and sum(code) >= 2 * LONGEST + 7
    assert [m.serial for m in sent if isinstance(m, Batch)] == sorted({m.serial for m in sent if isinstance(m, Batch)})
