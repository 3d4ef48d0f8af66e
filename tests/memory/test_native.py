"""The hot path in C exists if a compiler does, and does the same as the Python."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gt
from gt.client import compile, traces
from gt.client.autograd import Port
from gt.client.native import NATIVE
from gt.client.traces import TraceForm, Window, define
from gt.client.user_lines import origin, user_origin
from gt.ops.table import TABLE, infer
from gt.program.code import FREE
from gt.spec import Spec, float32
from gt.testing import cluster
from tests.memory.collecting import collect

pytestmark = pytest.mark.default("GT_NATIVE", "GT_TRACE")  # a test of their effect

native = pytest.mark.skipif(NATIVE is None, reason="not built: there is no compiler here")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
def test_it_is_built_where_a_compiler_is() -> None:
    assert NATIVE is not None and gt.debug.is_native()


@native
def test_both_ways_send_the_same_instructions_and_find_the_same_numbers() -> None:
    program = Path(__file__).with_name("native_programs.py")
    found = {}
    for way, name in (("0", "python"), ("1", "native")):
        env = {**os.environ, "GT_NATIVE": way, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stderr == f"{name}\n", done.stderr
        found[name] = done.stdout.splitlines()
    assert len(found["python"]) > 300 and found["native"] == found["python"]


@native
def test_tensors_that_objects_refer_to_are_found_as_python_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slotted:
        __slots__ = ("x",)

    with cluster():
        holder, local = Slotted(), gt.ones(1)
        holder.x = gt.nn.Parameter(gt.ones(2))
        kept = [holder, {"k": (gt.ones(3),)}, local, gt.nn.Linear(2, 2)]
        found = []
        for way in (NATIVE, None):
            monkeypatch.setattr(compile, "NATIVE", way)
            found.append({id(t) for t in compile.living_tensors()})
        mine = {id(t) for t in (holder.x, kept[1]["k"][0], local, *kept[3].parameters())}
        assert found[0] == found[1] >= mine and len(mine) == 5
    with pytest.raises(TypeError):
        NATIVE.referents((), (gt.Tensor,))


def test_freed_future_iterators_are_not_referred_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Python 3.12 the second search would free them twice, and the collection after it would never end."""
    searched: list[object] = []
    found = gc.get_referents
    monkeypatch.setattr(compile, "NATIVE", None)
    monkeypatch.setattr(gc, "get_referents", lambda *objects: searched.extend(objects) or found(*objects))

    async def wait() -> None:
        await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(3)))

    with cluster():
        for _ in range(2):
            asyncio.run(wait())
            compile.living_tensors()
            collect()
    assert not any(o is sys.modules["_asyncio"] for o in searched)
    assert any(o is sys.modules["_asyncio"].__dict__ for o in searched)


ADD, MUL = (infer(TABLE[name], (Spec((2,), float32),) * 2, ()) for name in ("add", "mul"))
SCALE = infer(TABLE["mul"], (Spec((2,), float32), float), ())
KINDS = {1: ADD, 2: MUL, 3: SCALE}


def stretch(first: int, a: int, b: int, number: float) -> list[tuple]:
    """Three ops on two inputs, of which the first and a temporary end."""
    x, y, z = first, first + 1, first + 2
    return [(1, x, a, b), (3, y, x, number), (FREE, x), (FREE, a), (2, z, y, b), (FREE, y), (FREE, first - 50)]


def forms() -> tuple[TraceForm, TraceForm]:
    """The same form, checked in C and in Python."""
    trace = define(9, KINDS, *(Window.of(stretch(*at)) for at in ((100, 60, 61, 0.5), (200, 160, 161, 0.25))))  # type: ignore[misc]
    assert trace is not None
    made = TraceForm(trace, stretch(200, 160, 161, 0.25), KINDS)
    plain = TraceForm.__new__(TraceForm)
    plain.__dict__.update({k: v for k, v in made.__dict__.items() if k != "call"})
    return made, plain


@native
@given(st.integers(0, 6), st.integers(1, 3), st.sampled_from([60, 61, 100, 101, 102, 50, 7]), st.booleans())
def test_forms_are_recognised_alike(piece: int, at: int, value: Any, change: bool) -> None:
    quick, plain = forms()
    pieces = stretch(100, 60, 61, 0.75)
    if change and at < len(pieces[piece]):
        pieces[piece] = (*pieces[piece][:at], value, *pieces[piece][at + 1 :])
    want = plain.call(pieces)
    assert quick.call(pieces) == want
    if not change:
        assert want is not None and want[0] == (9, 102, 60, 61, 0.75) and want[1] == (50,)


@native
def test_an_invalid_form_is_refused() -> None:
    quick, _ = forms()
    pieces = stretch(100, 60, 61, 0.75)
    assert quick.call(pieces[:-1]) is None and quick.call([]) is None
    assert quick.call([(*pieces[0], 4), *pieces[1:]]) is None
    assert quick.call([pieces[0][:-1], *pieces[1:]]) is None
    for wrong in ([(7, 0)], [(-1, 0)], [(1, 5)], [(4, 3)]):
        with pytest.raises(ValueError):
            NATIVE.Form(9, 1, wrong, (), (), 1, 1, 0)
    with pytest.raises(TypeError):
        NATIVE.Handle(1, None, object())
    assert traces.REST == 6  # as native.c counts


@native
def test_nothing_is_left_behind() -> None:
    with cluster(1, "numpy") as c:
        session = c.sessions[0]
        a, b = gt.ones(3, requires_grad=True), gt.ones(3)
        rows = [TABLE["mul"], TABLE["add"], session, a.handle.spec, None, True, TABLE["layer_norm"], TABLE["sgd"], Port]
        model, optimizer = gt.nn.Sequential(gt.nn.LayerNorm(3), gt.nn.Linear(3, 3)), gt.optim.SGD([a], lr=0.0)

        def work() -> None:
            for _ in range(50):
                ((a * b + 1).exp().sum() * 2).backward()
                gt.nn.functional.layer_norm(a * b, (3,), b, b).sum().backward()  # several results, on the tape
                optimizer.step()
                assert len(list(model.parameters())) == 4
                a.grad = None
                with pytest.raises(ValueError):
                    a + gt.ones(4)
            session.flush()

        def held() -> list[int]:
            collect()
            return [sys.getrefcount(x) for x in rows]

        for _ in range(18):  # until the repeats are found, and called early
            work()
        before = held()
        for _ in range(6):
            work()
        grown = [y - x for x, y in zip(before, held())]
        assert max(grown) < 100, grown  # 300 rounds of ops: a reference lost in each would show
        c.settle()
        assert len(c.workers[0].spaces["c0"].table) < 20


def test_ids_are_given_once() -> None:
    """To ops and to whoever asks for one, from several threads at once."""
    with cluster(1, "numpy") as c:
        session, x = c.sessions[0], gt.ones(2)
        held = [x]
        ids = [x.handle.id]
        threads = [threading.Thread(target=lambda: ids.extend([session.next_id() for _ in range(500)])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            held.append(x + 1)
            ids += [held[-1].handle.id, session.next_id()]
        for thread in threads:
            thread.join()
        assert len(ids) == len(set(ids)) == 2401


@native
@pytest.mark.parametrize("retain", [False, True])
def test_the_walk_holds_nothing_once_it_is_done_or_has_failed(retain: bool) -> None:
    class Odd(gt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            if mode["fails"]:
                raise ValueError("a gradient that fails")
            return g

    mode = {"fails": False}
    with cluster(1, "numpy"):
        w, b = gt.ones(3, 3, requires_grad=True), gt.ones(3, requires_grad=True)
        hooked = gt.ones(3, requires_grad=True)
        hooked.register_hook(lambda g: g * 2)
        seen = [w, b, hooked, w.handle.spec, b.handle.spec]

        def step() -> None:
            values, places = (w @ w * b + hooked).sort()
            loss = (Odd.apply(values) + gt.nn.functional.layer_norm(values, (3,)) + b.sum()).tanh().sum()
            try:
                loss.backward(retain_graph=retain)
                assert not mode["fails"]
            except ValueError:
                assert mode["fails"]
            w.grad = b.grad = hooked.grad = None

        for mode["fails"] in (False, True):
            for _ in range(12):
                step()
            collect()
            before = [sys.getrefcount(t) for t in seen]
            for _ in range(30):
                step()
            collect()
            after = [sys.getrefcount(t) for t in seen]
            # A reference lost in a step is 30 here. Specs are shared with whatever else this process has kept, which may go.
            assert all(now < then + 15 for now, then in zip(after, before)), (before, after)


@native
def test_the_users_line_is_the_same_in_c_and_in_python() -> None:
    inside = {"__name__": "gt.within", "origin": origin, "user_origin": user_origin}
    exec("def inner():\n    return user_origin(), origin(0)\ndef outer():\n    return inner()\n", inside)
    mine = inside["outer"]()
    assert user_origin is NATIVE.origin and mine[0] == mine[1]
    code, at = mine[0]
    assert code is sys._getframe().f_code and 0 < at < len(code.co_code)
