"""Calls of traces. Where all inputs lie on one worker the call is handed on as it is; elsewhere the first is taken apart into
the instructions it stands for, which are planned one by one (and kept, see `gt/dispatcher/sharded_programs.py`)."""

from __future__ import annotations

from typing import Any

from gt.dispatcher.plan import Plan
from gt.dispatcher.tables import Client, TracePlans
from gt.spec import Layout
from gt.transport.messages import FREE, Instruction


def choose_trace(use: TracePlans, layouts: tuple[Layout, ...]) -> Plan:
    first = layouts[0]
    if first.solo is not None and all(x is first for x in layouts):
        return Plan(first.solo, (first,) * use.outs)
    return Plan(None, ())


def expand(client: Client, use: TracePlans, call: Instruction) -> list[Instruction]:
    """The instructions a call stands for. Registers become the call's ids; those of temporaries, ids below zero."""
    trace = use.definition
    names: dict[Any, Any] = dict(zip(range(1, trace.inputs + 1), call[1 + use.outs :]))
    names.update(zip(trace.outs, call[1 : 1 + use.outs]))
    numbers = zip(trace.holes, call[1 + use.outs + trace.inputs :])
    given = {place: number for places, number in numbers for place in places}
    holes: dict[int, list[tuple[int, Any]]] = {}
    for (at, position), value in given.items():
        holes.setdefault(at, []).append((position, value))
    out: list[Instruction] = []
    for index, ins in enumerate(trace.body):
        if ins[0] == FREE:
            out.append((FREE, names[ins[1]]))
            continue
        inner = client.uses[int(ins[0])]
        row = list(ins)
        for i in (*range(1, 1 + inner.outs), *inner.at):
            if ins[i] not in names:
                client.temporaries += 1
                names[ins[i]] = -client.temporaries
            row[i] = names[ins[i]]
        for position, value in holes.get(index, ()):
            row[position] = value
        out.append(tuple(row))
    return out
