"""Calls of traces. If all inputs lie on one worker, it gets the call unchanged; otherwise the first call is expanded into its
instructions, which are planned one by one (and kept, see `gt/dispatcher/sharded_programs.py`)."""

from __future__ import annotations

from gt.dispatcher.plan import Plan
from gt.dispatcher.tables import Client, TracePlans
from gt.program import Instruction, wire
from gt.spec import Layout


def choose_trace(use: TracePlans, layouts: tuple[Layout, ...]) -> Plan:
    first = layouts[0]
    if first.solo is not None and all(x is first for x in layouts):
        return Plan(first.solo, (first,) * use.result_count)
    return Plan(None, ())


def expand(client: Client, use: TracePlans, call: tuple) -> list[tuple[Instruction | None, tuple]]:
    """The instructions of a call. Its results and inputs have the call's ids, temporaries negative ids."""

    def temporary(value: int) -> int:
        client.temporaries += 1
        return -client.temporaries

    return wire.expand(use.program, call, temporary)
