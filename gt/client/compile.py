"""`gt.compile(fn)`: the explicit form of replay. The function runs as it is for its first calls on tensors of given specs;
from then on a call is one instruction, and none of its Python runs. What cannot be replayed without its Python (a value read
inside, a number that changes from call to call, a result on the tape) runs as before, and `why` says so. Numbers of which it
is known where they come from are an exception (`numbers.py`)."""

from __future__ import annotations

import functools
import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import ref

from gt.client.autograd import Tensor
from gt.client.capture_notes import CapturedSetting, Notes
from gt.client.captured_numbers import Numbers
from gt.client.handle import Handle
from gt.client.here import here
from gt.client.session import Session
from gt.client.tracer import SHORTEST
from gt.client.traces import Trace, Window, define
from gt.client.views import cut, raw_handle, set_raw_handle, storage_of
from gt.client.writes import unseen
from gt.program.code import encoded
from gt.program.stretch import flat

KNOWN = 64  # calls of one function that are known, by what they depend on; past it the oldest is forgotten


def compile(
    fn: Callable | None = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = None, mode: Any = None,
    options: Any = None, disable: bool = False,
) -> Any:  # fmt: skip
    """A function whose calls are captured once and then replayed; of a module, a module. PyTorch's settings are taken: of them
    only `disable` matters.

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
    wrap = getattr(type(fn), "_compiled_as", None)  # how a module stays one
    return wrap(fn, CompiledFunction(fn)) if wrap is not None else CompiledFunction(fn)


class CompiledFunction:
    """`why` has the reason calls are not replayed, by the key of their arguments; `again` counts the reasons for which what was
    captured had to be captured anew; `captures` and `replays` count."""

    def __init__(self, fn: Callable) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn
        self.uses: dict[tuple, list[_Capture]] = {}  # several where modules it calls are now in training and now not
        self.why: dict[tuple, str] = {}
        self.again: Counter[str] = Counter()
        self.captures = self.replays = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = here()
        leaves: list[Tensor] = []
        cast = scope.cast.name if scope.cast is not None else ""
        key = (_shape_of((args, kwargs), leaves), scope.signal, scope.backward, scope.grad, cast, id(scope.session))
        if key in self.why:
            return self.fn(*args, **kwargs)
        use = self._capture_for(key, scope.session, leaves)
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
        """What is known of calls like this one. What does not fit any more is forgotten: its Python must run once more, and may
        leave other tensors behind."""
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
    """What a call depends on besides the values of its tensors; collects those."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return (value.handle.spec, value.requires_grad)
    if isinstance(value, (list, tuple)):
        return (type(value), *(_shape_of(v, leaves) for v in value))
    if isinstance(value, dict):
        return (dict, *((k, _shape_of(v, leaves)) for k, v in value.items()))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (type(value), value)


class _Call:
    """The last captured run: its window, where updates take their numbers from, which tensors held what when it ended, and what
    it returned. Of the run before, only the window is kept: what holds its tensors would keep this run from ending them."""

    def __init__(self, window: Window, noted: list[list[CapturedSetting]], result: Any, leaves: list[Tensor]) -> None:
        self.window, self.noted, self.result = window, noted, result
        self.arguments = {id(t): i for i, t in enumerate(leaves)}
        self.holders: dict[int, list[Tensor]] = {}
        for t in living_tensors():
            self.holders.setdefault(raw_handle(t).id, []).append(t)


class _Capture:
    """A function on arguments of given specs."""

    def __init__(self, session: Session, given: set[tuple]) -> None:
        self.session = session
        self.modes: list[tuple[ref, bool]] = []  # modules that it calls, and whether they are in training
        self.given = given  # keys of settings that turned out to change, and are given with each call
        self.before: Window | None = None  # of the run that was captured first
        self.runs = 0
        self.ready = False
        self.into_arguments = False  # whether it writes into its arguments
        self.refused = ""

    # Capturing

    def capture(self, fn: Callable, args: tuple, kwargs: dict, leaves: list[Tensor]) -> Any:
        """Run the function; from the second run on, look at what it wrote."""
        session = self.session
        self.runs += 1
        outer, session.noted = session.noted, Notes()
        try:
            if self.runs > 1 and session.tracer is not None:
                return self._watch(fn, args, kwargs, leaves, session.noted)
            self.refused = "" if session.tracer else "GT_TRACE=0"
            return fn(*args, **kwargs)  # the first run makes what is made once, such as optimizers' state
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
        """Why what was written into arguments cannot be written again without the Python; "" where it can."""
        written = [t for t, before in zip(leaves, storage) if raw_handle(storage_of(t)).id != before]
        self.into_arguments = bool(written)
        if any(t.base is not None for t in written):
            return "it writes into an argument that is a view"
        return "it writes into an argument that shares memory with another" if written and _aliased(leaves) else ""

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
            self.refused = "it takes in data from the client"
        elif any(t.node is not None for t in _tensors(result)):
            self.refused = "its result is on the tape: call backward() inside, or detach()"
        if self.refused:
            return
        if self.before is None:
            self.before = window
        else:
            self._define(self.before, _Call(window, noted, result, leaves), ids)

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
        """Where inputs come from and results go to: arguments, what the call returns, and tensors that live on."""
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
                self.refused = "something it reads does not outlive the call"
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
        """Whether the modules it calls are in training now as they were."""
        return all(m is None or m.training is mode for m, mode in ((module(), mode) for module, mode in self.modes))

    def forget(self) -> None:
        if self.ready and self.session.tracer is not None:
            self.session.tracer.drop(self.trace.number)

    def stale(self, leaves: list[Tensor]) -> str:
        """Why what was captured does not fit any more: something it reads is gone, a value that ends with the call is held by
        someone else, or an optimizer's settings are others. "" where it fits."""
        self.tensors = [s() if type(s) is ref else leaves[s] for s in self.sources]
        if any(t is None for t in self.tensors):
            return "a tensor it reads is gone"
        for i in self.trace.dies_inputs:
            source = self.tensors[i]
            if source is None or sys.getrefcount(source.handle) > 2:
                return "a value that ends with the call is held elsewhere"
        return self.numbers.stale()

    def replay(self, leaves: list[Tensor]) -> Any:
        session = self.session
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
                    set_raw_handle(t, handle)  # a view whose base has another value too is stale, and renewed when used
        return _filled(self.template, made)


def _aliased(leaves: list[Tensor]) -> bool:
    """Whether some of these share memory."""
    return len({id(storage_of(t)) for t in leaves}) < len(leaves)


def _views(result: Any) -> str:
    """Why results cannot be made by a replay: what they are views of lives on. "" where they can."""
    for t in _tensors(result):
        if t.base is not None and not unseen(t):
            return "it returns a view of a tensor that lives on: clone() it"
        cut(t)
    return ""


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _shape_of(value, found)
    return found


def living_tensors() -> list[Tensor]:
    """Every tensor that something refers to. The collector itself does not keep track of most of them."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()  # the collector does not name what is frozen
    gc.collect()  # what only garbage refers to is not living
    frames: list[Any] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    found = {id(t): t for t in gc.get_referents(*gc.get_objects(), *frames) if issubclass(type(t), Tensor)}
    if frozen:
        gc.freeze()
    for t in list(found.values()):
        if t.grad is not None:
            found[id(t.grad)] = t.grad
        while t.base is not None:  # which the collector does not see where it does not keep track of the view
            t = found[id(t.base)] = t.base
    return list(found.values())


class _Slot(int):
    """A place in a result that the n-th live result of the trace fills."""


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
