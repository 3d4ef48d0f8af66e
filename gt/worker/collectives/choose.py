"""Chooses the transports of a worker's collectives."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from gt import environment
from gt.transport.process_memory import Inbox
from gt.worker.collectives.groups import GroupCollectives
from gt.worker.collectives.mail import Collectives, MailCollectives
from gt.worker.engine import Engine


def way_asked() -> str:
    """The requested way for collectives; if it does not work, the next one of the list that does is used."""
    return environment.COLLECTIVES.value()


def collectives_for(
    engine: Engine, host: str, waker: Callable[[], None], clock: Callable[[], float], inbox: Inbox | None, plain: bool
) -> Collectives:
    """This worker's collectives: by the best transport of each group, or by mail if PyTorch is not installed."""
    if way_asked() == "mail" or not importlib.util.find_spec("torch"):
        return MailCollectives(engine, announces=True)
    return GroupCollectives(engine, host, waker, clock, inbox, plain, environment.HOST.value())
