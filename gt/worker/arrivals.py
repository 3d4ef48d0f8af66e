"""Messages as they come from the dispatcher, and Starts from clients: each is sorted to the queue of clients' turns, or to the
messages outside of clients' streams."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from gt.errors import ProtocolError
from gt.transport.lane_tables import AnswerLanes
from gt.transport.messages import Ask, Drop, Mail, Run, Start
from gt.transport.polling import Sources
from gt.worker.client_turns import ClientTurns
from gt.worker.core import Worker
from gt.worker.deferred_runs import Found
from gt.worker.dispatcher_socket import Connection

MAIN = threading.main_thread().ident


class Arrivals:
    """`read(frame)` decodes a message, `send` sends the mail of a turn."""

    def __init__(
        self, dispatcher: Connection, lanes: AnswerLanes, sources: Sources, core: Worker, clock: Callable[[], float],
        read: Callable[[Any], Any], send: Callable[[list[Mail]], None],
    ) -> None:  # fmt: skip
        self.dispatcher, self.lanes, self.sources, self.core = dispatcher, lanes, sources, core
        self.read, self.send = read, send
        self.expecting = False  # whether Starts are polled for: not before the first deferred run, as each wait takes longer
        self.others: deque[Any] = deque()  # messages of the dispatcher that are not part of a client's stream
        self.turns = ClientTurns(core, clock, self.take_in, self.interrupted, send)

    def interrupted(self) -> bool:
        """Whether there is mail on other sockets than the dispatcher's."""
        return not self.dispatcher.sources_of_its_own.issuperset(self.sources.wait(0))

    def take_in(self) -> bool:
        """Receive the dispatcher's messages and note the Drops of clients, whose work is then skipped. Kernels call this, too,
        on the threads that run them; only the main thread may use the sockets."""
        if threading.get_ident() != MAIN and not self.turns.on_second_thread():
            return False
        while (frame := self.dispatcher.receive()) is not None:
            self.sort(self.read(frame))
        if self.lanes.starting:
            self.start_runs(self.turns.put_all)
        return True

    def start_runs(self, take: Callable[[Found], None]) -> bool:
        """Clients have started their deferred runs. A client that sends anything else has no lane any more. Returns whether
        there may be more."""
        received = False
        for client, data in self.lanes.received():
            received, message = True, self.read(data)
            try:
                if type(message) is not Start:
                    raise ProtocolError(f"expected a Start, got {type(message).__name__}")
                take(self.turns.deferred.start(client, message))
            except ProtocolError as wrong:
                self.core.drop(f"the lane of a client: {wrong}")
                self.lanes.end(client)
        return received

    def sort(self, message: Any) -> None:
        match message:
            case Run(client) as run if self.turns.deferred.concerns(run):
                while self.start_runs(self.turns.put_all):
                    pass  # Starts that were sent before this run
                self.turns.put_all(self.turns.deferred.arrived(run))
                if self.lanes.expect_starts(client) and not self.expecting:
                    self.expecting = True
                    self.sources.add(self.lanes.starts_fd)
            case Run(client) | Drop(client) | Ask(_, _, (client, _)):
                self.turns.put(client, message)
                if type(message) is Drop:
                    self.send(self.core.leaving(message))
            case _:
                self.others.append(message)
