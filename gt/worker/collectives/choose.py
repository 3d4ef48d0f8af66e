"""By which way a worker's collectives go."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from gt import environment
from gt.transport.process_memory import Inbox
from gt.worker.collectives.groups import GroupCollectives
from gt.worker.collectives.mail import Collectives, MailCollectives
from gt.worker.engine import Engine


def way_asked() -> str:
    """The way that bytes are to go between workers: the first that works of these, from the one that is asked for on."""
    return environment.COLLECTIVES.value()


def collectives_for(
    engine: Engine, host: str, waker: Callable[[], None], clock: Callable[[], float], inbox: Inbox | None, plain: bool
) -> Collectives:
    """How this worker talks to others: as each group can, or by mail where PyTorch is not installed."""
    if way_asked() == "mail" or not importlib.util.find_spec("torch"):
        return MailCollectives(engine, announces=True)
    return GroupCollectives(engine, host, waker, clock, inbox, plain, environment.HOST.value())
