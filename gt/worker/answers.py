"""Answers to a client's run: the tensors that it reads, and Done. On a device that several clients share, an answer is sent
when the device has computed it."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any

from gt.errors import ProtocolError
from gt.ops.table import spec_in
from gt.spec import Spec
from gt.transport.messages import Done, Failed, Fetch, Mail, Run, SmallValues, Value
from gt.worker import transfers
from gt.worker.client_values import Broken, ClientValues
from gt.worker.executor import InstructionExecutor
from gt.worker.host_memory import readable
from gt.worker.peer_names import DISPATCHER
from gt.worker.segments import Memory
from gt.worker.unreported import Columns

GROUP, TINY = 16, 1024  # most answers in one message, and most bytes of each


def grouped(mails: list[Mail], clients: Container[str]) -> list[Mail]:
    """The same mails, with small values for one of these clients that follow one another in one message."""
    out: list[Mail] = []
    group: list[Value] = []
    for mail, after in zip(mails, [*mails[1:], None]):
        if mail.peer not in clients or not _small(mail):
            out.append(mail)
            continue
        group.append(mail.message)
        if after is None or after.peer != mail.peer or not _small(after) or len(group) == GROUP:
            out.append(Mail(mail.peer, SmallValues(tuple(group))) if len(group) > 1 else mail)
            group = []
    return out


def _small(mail: Mail) -> bool:
    return type(mail.message) is Value and not mail.frames and mail.message.place is None and len(mail.message.data) <= TINY


class Answers:
    def __init__(self, executor: InstructionExecutor, memory: Memory) -> None:
        self.executor, self.memory = executor, memory
        self.refused = 0  # reads whose spec differs from the tensor's
        self.seconds: Callable[[str], float] = lambda client: 0.0  # device time of a client; the shell sets it

    def of_run(self, values: ClientValues, run: Run) -> list[Mail]:
        """The answers to a run, except answers that wait for the device."""
        out: list[Mail] = []
        streams = self.executor.streams
        asynchronous = streams is not None and streams.shared  # the worker must not wait for this client's kernels
        for get in run.gets:
            if not asynchronous and values.watched is None:
                out.append(self._read(values, get))
            elif not asynchronous or not self._read_later(values, get):
                if asynchronous and self.executor.turn is not None:
                    self.executor.turn.start()  # it waits for kernels that are charged already
                out.append(self._read(values, get) if values.watched is None else self._timed_read(values, get, values.watched))
        if run.ack:
            done = partial(self._done, run.client, run.serial, self._broken(values))
            if asynchronous:
                streams.later(run.client, done)
            else:
                self._keep_up(streams) if streams is not None else self.executor.engine.sync()
                out.append(done())
        return out

    def _keep_up(self, streams: Any) -> None:
        """Wait for the device before an acknowledgement, but not while another client that was idle waits for this worker."""
        turn = self.executor.turn
        streams.keep_up(turn.newcomer if turn is not None and turn.several else None)

    def of_failures(self, values: ClientValues) -> Mail:
        """Word of the results that a run could not make, where nobody asked whether it is done."""
        return Mail(DISPATCHER, Done(values.client, 0, self._broken(values)))

    @staticmethod
    def _broken(values: ClientValues) -> tuple[int, ...]:
        return tuple(id for id in values.broken if type(id) is int)

    def _done(self, client: str, serial: int, broken: tuple[int, ...]) -> Mail:
        return Mail(DISPATCHER, Done(client, serial, broken, self.seconds(client)))

    def _read_later(self, values: ClientValues, get: Fetch) -> bool:
        """Answer a small read once the device has computed it. Returns whether that is possible."""
        array, spec = readable(values.table.get(get.id)), spec_in(get.spec)
        if array is None or isinstance(array, Broken) or not isinstance(spec, Spec) or spec.nbytes > transfers.INLINE:
            return False
        streams, result = self.executor.streams, getattr(array, "host", None)
        if result is not None:  # the graph that made it has copied it
            streams.later(values.client, partial(self._answer_result, values.client, result, result.begin(), get))
            return True
        done = getattr(array, "done", None)
        host, copied = streams.to_host_early(array, done) if done is not None else (streams.to_host(array), None)
        streams.later(values.client, partial(self._answer_copied, values.client, host, get), copied)
        return True

    def _answer_copied(self, client: str, host: Any, get: Fetch) -> Mail:
        """The answer out of a copy in host memory. Its bytes are in the message."""
        answer = self._answer(client, host, get)
        self.executor.streams.host_read(host)
        return answer

    def _answer_result(self, client: str, result: Any, read: Any, get: Fetch) -> Mail:
        """The answer out of the host memory of a graph's result."""
        answer = self._answer(client, read.host, get)
        result.end(read)
        return answer

    def _answer(self, client: str, array: Any, get: Fetch) -> Mail:
        try:
            return transfers.answer(self.executor.engine, self.memory, self.executor.name, client, array, get)
        except ProtocolError as wrong:
            return self._refusal(client, get, wrong)

    def _refusal(self, client: str, get: Fetch, wrong: ProtocolError) -> Mail:
        self.refused += 1
        return Mail(client, Failed(get.ticket, "ProtocolError", str(wrong), get.id))

    def _read(self, values: ClientValues, get: Fetch) -> Mail:
        executor, array = self.executor, readable(values.table.get(get.id))
        try:
            return transfers.answer(executor.engine, self.memory, executor.name, values.client, array, get)
        except ProtocolError as wrong:
            return self._refusal(values.client, get, wrong)
        except Exception as error:  # a device reports asynchronous kernel failures here
            cause = self.executor.failure("reading it", error, get.id)
            return Mail(values.client, Failed(get.ticket, cause.error, cause.text, cause.tensor))

    def _timed_read(self, values: ClientValues, get: Fetch, watched: Columns) -> Mail:
        began = watched.clock()
        answer = self._read(values, get)
        watched.read(get.id, getattr(spec_in(get.spec), "nbytes", 0), began)
        return answer
