"""A worker's answers to invalid messages, kinds and operands: an error for their sender alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.errors import ProtocolError
from gt.program.code import Form
from gt.program.stretch import pick
from gt.program.wire import TraceDef
from gt.transport.messages import Done, Failed, Mail, Run
from gt.worker.programs.compile import TRACE, expected

REASON = 500  # characters of a reason


class RefusedKind:
    """In place of a kind or trace that cannot be prepared: every use of it fails with the same reason."""

    ways: dict[str, int] = {}
    ops: dict[str, int] = {}
    tensor_positions: tuple[int, ...] = ()
    specs: tuple = ()
    limits: tuple = ()
    compared: tuple = ()
    checked = pick(()), ()
    kinds: dict[int, Any] = {}
    large = False
    needs = 0, 0, False  # as that of Ready

    def __init__(self, what: str, wrong: Exception, result_count: int, dies: tuple[int, ...] = ()) -> None:
        self.title, self.wrong, self.result_count, self.dies = what, wrong, result_count, dies
        self.results = (None,) * result_count
        self.encoding = Form(result_count, 0, ())
        self.form = TRACE

    @classmethod
    def trace(cls, trace: TraceDef, wrong: Exception, more: int = 0) -> RefusedKind:
        """A trace's, with so many more results."""
        result_count = more + len(trace.results)
        return cls(f"trace {trace.number}", wrong, result_count, tuple(map(Form(result_count, 0, ()).at, trace.dies)))

    def run(self, *operands: Any) -> Any:
        why = f"{type(self.wrong).__name__}: {self.wrong}"
        raise ProtocolError(f"{self.title} cannot be prepared on this worker: {why}"[:REASON])

    def stats(self) -> dict[str, float]:
        return {}


def mismatched_operand(ready: Any, ins: tuple, specs: dict[int, Any]) -> ProtocolError:
    """The error of an instruction whose operands do not have the specs of its kind."""
    found = [specs.get(ins[i]) for i in ready.tensor_positions if i < len(ins)]
    return ProtocolError(f"{ready.title} expected operands {list(ready.specs)}, got {found}")


def check_numbers(ready: Any, ins: tuple) -> None:
    """Raise if a number of an instruction would give a result of another shape or dtype than its kind's."""
    for at, of, low, high in ready.limits:
        number = ins[at]
        if type(number) is not of or low is not None and not low <= number <= high:
            raise ProtocolError(f"{ready.title} with the number {number}: expected {expected(of, low, high)}")


def refusal(run: Any, wrong: Exception, dispatcher: str) -> Iterable[Mail]:
    """The answers to a refused message: an error for each read, and Done for the run."""
    if not isinstance(run, Run):
        return
    for get in run.gets:
        text = f"a worker could not carry this out: {type(wrong).__name__}: {wrong}"[:REASON]
        yield Mail(run.client, Failed(get.ticket, "RemoteError", text, get.id))
    if run.ack:
        yield Mail(dispatcher, Done(run.client, run.serial))
