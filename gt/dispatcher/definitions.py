"""Defines the kinds and traces of a client's message, in slices between which other clients have their turns."""

from __future__ import annotations

from collections import deque

from gt.dispatcher.flow import Flow
from gt.dispatcher.rewrite import Rewriter
from gt.dispatcher.tables import Client, KindPlans, Refused, TracePlans, computed
from gt.errors import ProtocolError
from gt.program.code import is_client_kind
from gt.program.wire import TraceDef, TraceReader
from gt.transport import checks
from gt.transport.checks import TooMuch
from gt.transport.messages import Batch, KindDef

KIND = 3  # the cost of defining a kind, as `Rewriter.left` counts; one of many operands costs as much as several
READ = 4  # instructions of a trace that take as long to read as one of another kind's part to plan


class PendingDefinitions:
    """The remaining definitions of a message. An invalid definition is kept as `Refused`, with the reason."""

    def __init__(self, client: Client, batch: Batch) -> None:
        self.rest: deque[KindDef | TraceDef] = deque((*batch.kinds, *batch.traces))
        self.reader: TraceReader | None = None  # of the first trace, a part of which is read
        client.traced += sum(checks.length(trace) for trace in batch.traces)
        if client.traced > checks.TRACED:
            raise TooMuch(f"{client.traced} instructions in the traces of a client: the most are {checks.TRACED}")

    def advance(self, rewriter: Rewriter, client: Client, flow: Flow) -> bool:
        """Define as many as one slice has room for. Returns whether all are defined."""
        while self.rest and rewriter.left > 0:
            definition = self.rest[0]
            number = definition.number
            if not is_client_kind(number) or number in client.uses:
                # A number cannot be redefined: workers get its definition once.
                flow.refused.append(f"number {number} is already defined as another kind or trace")
                self.rest.popleft()
                continue
            try:
                use = self._use(client, definition, rewriter)
                if use is None:
                    return False
                client.uses[number] = use
            except ProtocolError as wrong:
                client.uses[number] = Refused(definition, str(wrong)[:500])
                flow.refused.append(str(wrong))
            client.known += client.uses[number].size
            self.rest.popleft()
            self.reader = None
        return not self.rest

    def _use(self, client: Client, definition: KindDef | TraceDef, rewriter: Rewriter) -> KindPlans | TracePlans | None:
        """The meaning of a definition; None for a trace of which a part is left to read."""
        if isinstance(definition, TraceDef):
            self.reader = self.reader or TraceReader(definition, computed(client.uses))
            count = READ * max(rewriter.left, 1)
            rewriter.left -= 1 + min(count, len(definition.body) - self.reader.index) // READ
            return TracePlans(self.reader, client.uses) if self.reader.advance(count) else None
        rewriter.left -= KIND
        size = checks.size(definition)
        rewriter.left -= KIND * (size - 1)
        kind = checks.kind_in(definition)
        if kind.row.collective:
            raise ProtocolError(f"{kind.row} cannot be defined by a client: only the dispatcher writes it")
        return KindPlans(definition, kind, size)
