"""`gt.compile(fn)`: explicit capture and replay. The function's Python code runs for its first calls on tensors of given specs;
from then on a call is one instruction, without the Python code. A function that cannot be replayed (it reads a value, a number
changes from call to call, a result is on the tape) runs as before, and `why` has the reason. Changing numbers whose source is
known can be replayed (`captured_numbers.py`)."""

from __future__ import annotations

import functools
import gc
import sys
from collections import Counter
from collections.abc import Callable
from itertools import compress, groupby, repeat
from operator import is_not
from types import ModuleType
from typing import Any
from weakref import ref

import numpy as np

from gt.client.autograd import Tensor
from gt.client.capture_notes import CapturedSetting, Notes
from gt.client.captured_numbers import Numbers
from gt.client.handle import Handle
from gt.client.here import here
from gt.client.native import NATIVE
from gt.client.session import Session
from gt.client.tracer import SHORTEST
from gt.client.traces import Trace, Window, define
from gt.client.views import cut, raw_handle, set_raw_handle, storage_of
from gt.client.writes import unseen
from gt.program.code import encoded
from gt.program.stretch import flat
from gt.transport.interrupts import UNINTERRUPTED

KNOWN = 64  # most captures of one function, by key; above, the oldest is dropped


def compile(
    fn: Callable | None = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = None, mode: Any = None,
    options: Any = None, disable: bool = False,
) -> Any:  # fmt: skip
    """A function whose calls are captured once and then replayed; for a module, a module. PyTorch's settings are accepted; only
    `disable` has an effect.

    >>> @gt.compile
    ... def step(x):
    ...     return (x * 2.0 + 1.0).relu().sum() / 4.0 - 1.0
    >>> [step(gt.ones(4)).item() for _ in range(5)]
    [2.0, 2.0, 2.0, 2.0, 2.0]
    """
    if fn is None:
        return functools.partial(compile, disable=disable)
    if disable:
        return fn
    wrap = getattr(type(fn), "_compiled_as", None)  # a module's compiled form is a module
    return wrap(fn, CompiledFunction(fn)) if wrap is not None else CompiledFunction(fn)


class CompiledFunction:
    """`why` has the reason why calls are not replayed, by the key of their arguments; `again` counts the reasons for repeated
    captures; `captures` and `replays` are counts."""

    def __init__(self, fn: Callable) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.uses: dict[tuple, list[_Capture]] = {}  # several if the called modules change between training and evaluation
        self.why: dict[tuple, str] = {}
        self.again: Counter[str] = Counter()
        self.captures = self.replays = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = here()
        leaves: list[Tensor] = []
        cast = scope.cast.name if scope.cast is not None else ""
        session = scope.session
        under = (scope.signal, scope.backward, scope.grad, cast, session.kinds.precision, id(session))
        key = (_shape_of((args, kwargs), leaves), *under)
        if key in self.why:
            return self.fn(*args, **kwargs)
        use = self._capture_for(key, session, leaves)
        if use.ready and use.into_arguments and _aliased(leaves):
            return self.fn(*args, **kwargs)
        if use.ready:
            self.replays += 1
            return use.replay(leaves)
        result = use.capture(self.fn, args, kwargs, leaves)
        if use.refused:
            self.why[key] = use.refused
            del self.uses[key]
        elif use.ready:
            self.captures += 1
        return result

    def _capture_for(self, key: tuple, session: Session, leaves: list[Tensor]) -> _Capture:
        """The capture for calls like this one. An outdated capture is dropped: its Python code must run again, and may use
        other tensors."""
        uses = self.uses.setdefault(key, [])
        use = next((u for u in uses if u.suits()), None)
        stale = use.stale(leaves) if use is not None and use.ready else ""
        if use is None or stale:
            given = use.numbers.given if use is not None else set()
            if use is not None:
                self.again[stale] += 1
                uses.remove(use)
                use.forget()
            use = _Capture(session, given)
            uses.append(use)
            if sum(map(len, self.uses.values())) > KNOWN:
                for old in self.uses.pop(next(iter(self.uses))):
                    old.forget()
        return use

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def _shape_of(value: Any, leaves: list[Tensor]) -> Any:
    """The key of a call: all that it depends on besides the values of its tensors, which are collected in a list."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return (value.handle.spec, value.requires_grad)
    if isinstance(value, (list, tuple)):
        return (type(value), *(_shape_of(v, leaves) for v in value))
    if isinstance(value, dict):
        return (dict, *((k, _shape_of(v, leaves)) for k, v in value.items()))
    if isinstance(value, (float, complex, np.inexact)):
        return (type(value), np.asarray(value).tobytes())  # zeros have signs, and a nan differs from itself
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (type(value), value)


class _Call:
    """The last captured run: its window, the sources of its updates' numbers, the tensors and their values at its end, and its
    return value. Of the run before, only the window is kept: other references would keep its tensors alive in this run."""

    def __init__(
        self, session: Session, window: Window, noted: list[list[CapturedSetting]], result: Any, leaves: list[Tensor]
    ) -> None:  # fmt: skip
        self.window, self.noted, self.result = window, noted, result
        self.arguments = {id(t): i for i, t in enumerate(leaves)}
        # Each session counts its ids from 1. (No local variable: this frame, with all its references, may outlive the call.)
        self.holders = {
            id: [*found]
            for id, found in groupby(
                sorted((t for t in living_tensors() if raw_handle(t).session is session), key=_id), key=_id
            )
        }


def _id(t: Tensor) -> int:
    return raw_handle(t).id


class _Capture:
    """The capture of a function on arguments of given specs."""

    def __init__(self, session: Session, given: set[tuple]) -> None:
        self.session = session
        self.modes: list[tuple[ref, bool]] = []  # called modules, and whether they are in training
        self.given = given  # keys of settings that have changed, which are arguments of each call
        self.before: Window | None = None  # of the first captured run
        self.runs = 0
        self.ready = False
        self.into_arguments = False  # whether it writes to its arguments
        self.refused = ""

    # Capturing

    def capture(self, fn: Callable, args: tuple, kwargs: dict, leaves: list[Tensor]) -> Any:
        """Run the function; from the second run on, capture its instructions."""
        session = self.session
        self.runs += 1
        outer, session.noted = session.noted, Notes()
        try:
            if self.runs > 1 and session.tracer is not None:
                return self._watch(fn, args, kwargs, leaves, session.noted)
            self.refused = "" if session.tracer else "GT_TRACE=0"
            return fn(*args, **kwargs)  # the first run creates lasting objects, such as optimizers' state
        finally:
            self.modes = [(ref(m), m.training) for m in session.noted.modules.values()]
            session.noted = outer

    def _watch(self, fn: Callable, args: tuple, kwargs: dict, leaves: list[Tensor], noted: Notes) -> Any:
        session, ids = self.session, [t.handle.id for t in leaves]
        storage = [raw_handle(storage_of(t)).id for t in leaves]
        with session.lock:
            session.flush(wait=False)
            before, session.limit = session.serial, sys.maxsize
            try:
                result = fn(*args, **kwargs)
                if session.serial != before:
                    self.refused = "a value is read inside it"
                    return result
                window = Window.of(session.code)
            finally:
                session.limit = 1
            self.refused = self._writes(leaves, storage) or _views(result)
            self._look(window, noted.updates, result, leaves, ids)
            session.flush(wait=False)
        return result

    def _writes(self, leaves: list[Tensor], storage: list[int]) -> str:
        """Why writes to arguments cannot be replayed; "" if they can."""
        written = [t for t, before in zip(leaves, storage) if raw_handle(storage_of(t)).id != before]
        self.into_arguments = bool(written)
        if any(t.base is not None for t in written):
            return "it writes to an argument that is a view"
        return "it writes to an argument that shares memory with another" if written and _aliased(leaves) else ""

    def _look(
        self, window: Window, noted: list[list[CapturedSetting]], result: Any, leaves: list[Tensor], ids: list[int]
    ) -> None:  # fmt: skip
        if self.refused:
            return
        assert self.session.tracer is not None
        size = self.session.tracer.size(window.tokens)
        if size < SHORTEST:
            self.refused = f"it has only {size} ops"
        elif any(self.session.kinds.meaning[t].row.loads for t in window.tokens):
            self.refused = "it loads data from the client"
        elif any(t.node is not None for t in _tensors(result)):
            self.refused = "its result is on the tape: call backward() inside, or detach()"
        if self.refused:
            return
        if self.before is None:
            self.before = window
        else:
            self._define(self.before, _Call(self.session, window, noted, result, leaves), ids)

    def _define(self, before: Window, last: _Call, ids: list[int]) -> None:
        if before.tokens != last.window.tokens:
            self.refused = "its ops differ from call to call"
            return
        session = self.session
        assert session.tracer is not None
        numbers = Numbers(session, last.noted, before, last.window, self.given)
        trace = define(session.tracer.number(), session.kinds.meaning, before, last.window, numbers.apart)
        if trace is None:
            self.refused = "its topology differs from call to call"
            return
        if not numbers.fill(trace.hole_positions):
            self.refused = "a number in it changes from call to call"
            return
        self.numbers = numbers
        session.tracer.define(trace)
        self._bind(trace, before, last, ids)

    def _bind(self, trace: Trace, before: Window, last: _Call, ids: list[int]) -> None:
        """Find the sources of the inputs and destinations of the results: arguments, returned values and surviving tensors."""
        outs_before, _ = trace.topology.bind(flat(before.ops)) or ((), ())
        results, inputs = trace.topology.bind(flat(last.window.ops)) or ((), ())
        made_before = {made: j for j, made in enumerate(outs_before)}
        self.trace = trace
        self.specs = [s for ins in last.window.ops for s in self.session.kinds.meaning[int(ins[0])].outs]
        returned = {id(t) for t in _tensors(last.result)}
        self.sources: list[Any] = []
        for at in inputs:
            holder = results[made_before[at]] if at in made_before else at
            found = [t for t in last.holders.get(holder, ()) if id(t) not in returned]
            if at in ids:
                self.sources.append(ids.index(at))
            elif found:
                self.sources.append(ref(found[0]))
            else:
                self.refused = "a tensor that it reads does not outlive the call"
                return
        self.sinks: list[list[Any]] = [
            [last.arguments.get(id(t), ref(t)) for t in last.holders.get(results[j], ()) if id(t) not in returned]
            for j in trace.live_results
        ]
        self.template = _templated(last.result, {results[j]: k for k, j in enumerate(trace.live_results)})
        self.live_specs = [self.specs[j] for j in trace.live_results]
        self.ready = True

    # Replaying

    def suits(self) -> bool:
        """Whether the called modules are in the same training modes as in the capture."""
        return all(m is None or m.training is mode for m, mode in ((module(), mode) for module, mode in self.modes))

    def forget(self) -> None:
        if self.ready and self.session.tracer is not None:
            self.session.tracer.drop(self.trace.number)

    def stale(self, leaves: list[Tensor]) -> str:
        """Why the capture is outdated: a tensor that it reads is freed, a value that dies with the call has another reference,
        or an optimizer's settings changed. "" if it is current."""
        self.tensors = [s() if type(s) is ref else leaves[s] for s in self.sources]
        if any(t is None for t in self.tensors):
            return "a tensor that it reads was freed"
        for i in self.trace.dies_inputs:
            source = self.tensors[i]
            if source is None or sys.getrefcount(source.handle) > 2:
                return "a value that dies with the call is held elsewhere"
        return self.numbers.stale()

    def replay(self, leaves: list[Tensor]) -> Any:
        session = self.session
        with UNINTERRUPTED:  # a call frees the values that its results replace
            inputs = [source.handle.id for source in self.tensors if source is not None]
            self.tensors = []
            made = [Handle(session.next_id(), spec, session) for spec in self.live_specs]
            for handle in made:
                session.asked_code[handle.id % len(session.asked_code)] = None
            session.call(encoded(self.trace.number, (h.id for h in made), (*inputs, *self.numbers.take())))
            for handle, sinks in zip(made, self.sinks):
                for sink in sinks:
                    if type(sink) is int:
                        leaves[sink].handle = handle
                    elif (t := sink()) is not None:
                        set_raw_handle(t, handle)  # a view whose base has a new value becomes stale, and is renewed when used
        session.send_due()
        return _filled(self.template, made)


def _aliased(leaves: list[Tensor]) -> bool:
    """Whether any of these tensors share memory."""
    return len({id(storage_of(t)) for t in leaves}) < len(leaves)


def _views(result: Any) -> str:
    """Why results cannot be replayed: they are views of tensors that outlive the call. "" if they can."""
    for t in _tensors(result):
        if t.base is not None and not unseen(t):
            return "it returns a view of a tensor that outlives the call: clone() it"
        cut(t)
    return ""


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _shape_of(value, found)
    return found


def living_tensors() -> list[Tensor]:
    """Every referenced tensor. The garbage collector itself does not track most of them."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()  # the garbage collector does not list frozen objects
    gc.collect()  # tensors referenced by garbage alone do not count
    frames: list[Any] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    classes = {Tensor}
    while more := {sub for c in classes for sub in type.__subclasses__(c)} - classes:
        classes |= more
    tracked = gc.get_objects()  # a million: there must be no Python code for each
    # Without modules, whose dictionaries are in the list themselves: up to Python 3.12.5 _asyncio's module also refers to
    # freed objects, and a reference to one frees it a second time, after which every collection goes round for ever.
    objects = [*compress(tracked, map(is_not, map(type, tracked), repeat(ModuleType))), *frames]
    del tracked
    if NATIVE is not None:
        found = {id(t): t for t in NATIVE.referents(objects, tuple(classes))}
    else:
        referents = gc.get_referents(*objects)
        found = {id(t): t for t in compress(referents, map(classes.__contains__, map(type, referents)))}
        del referents
    del objects
    if frozen:
        gc.freeze()
    for t in list(found.values()):
        if isinstance(t.grad, Tensor):  # the parts of a sparse one are found by themselves
            found[id(t.grad)] = t.grad
        while t.base is not None:  # the garbage collector does not see the base of an untracked view
            t = found[id(t.base)] = t.base
    return list(found.values())


class _Slot(int):
    """In a returned structure: the index of the trace's live result at this place."""


def _templated(value: Any, places: dict[int, int]) -> Any:
    if isinstance(value, Tensor):
        return _Slot(places[value.handle.id]) if value.handle.id in places else value
    if isinstance(value, (list, tuple)):
        return type(value)(_templated(v, places) for v in value)
    if isinstance(value, dict):
        return {k: _templated(v, places) for k, v in value.items()}
    return value


def _filled(template: Any, made: list[Handle]) -> Any:
    if type(template) is _Slot:
        return Tensor(made[template])
    if isinstance(template, (list, tuple)):
        return type(template)(_filled(v, made) for v in template)
    if isinstance(template, dict):
        return {k: _filled(v, made) for k, v in template.items()}
    return template
