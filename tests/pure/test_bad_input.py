"""Invalid messages of a client end neither the dispatcher nor its worker, and other clients do not notice."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
import pytest
from conversation import Conversation
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.ops import TABLE
from gt.spec import float32
from gt.transport.messages import Batch, Failed, KindDef, Mail, Message, TraceDef, Upload, Value, decode, encode
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER

F = float32.code
PAIR = (F, 2, 2)
KINDS = (
    KindDef(1, "full", ((-3,),), ((2, 2), F)),
    KindDef(2, "add", (PAIR, PAIR), ()),
    KindDef(3, "load", ((-2,), (-2,), (-2,)), ((2, 2), (2, 2), (0, 0), F)),
    KindDef(4, "exp", (PAIR,), ()),
    KindDef(5, "slice", (PAIR, (-2,), (-2,)), (((-1, 1), (1, 1)),)),
    KindDef(6, "cat", (PAIR, PAIR), (1,)),
)


class Pool:
    """A dispatcher, a worker, a good client with tensor 1, and a bad one; every message is written and read as on a wire."""

    def __init__(self, engine: str = "numpy") -> None:
        self.talk, self.worker = Conversation(), Worker(make(engine))
        self.out: list[Mail] = []
        self.talk.worker()
        self.talk.client("good")
        self.talk.client("bad")
        self.say("good", Batch(1, KINDS, [(1, 1, 3.0)]))

    def say(self, peer: str, message: Message) -> list[Mail]:
        """The mail that comes back to clients."""
        back: list[Mail] = []
        queue = deque(self.talk(peer, decode(encode(message))))
        while queue:
            mail = queue.popleft()
            if mail.peer != "w0":
                back.append(mail)
                continue
            for answer in self.worker.handle(Mail(DISPATCHER, decode(encode(mail.message)))):
                if answer.peer == DISPATCHER:
                    queue.extend(self.talk("w0", decode(encode(answer.message))))
                else:
                    back.append(answer)
        return back

    def unharmed(self) -> None:
        [mail] = self.say("good", Batch(2, (), [], ((9, 1, PAIR),)))
        assert mail.peer == "good" and isinstance(mail.message, Value)
        assert np.frombuffer(mail.message.data, "f4").tolist() == [3.0] * 4
        assert set(self.worker.spaces["good"].table) == {1}


numbers = st.integers(-3, 9) | st.booleans() | st.floats(width=16) | st.integers(-(2**63), 2**63 - 1)
instructions = st.lists(numbers, max_size=6).map(tuple)
likely = st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
wires = st.lists(st.integers(-5, 12), max_size=4).map(tuple)
gets = st.tuples(st.integers(-3, 80), st.integers(-3, 9), wires | st.just(PAIR))
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)
ops = st.sampled_from(sorted(TABLE)) | st.text(max_size=4)
kinds = st.builds(KindDef, st.integers(-1, 9), ops, st.lists(wires, max_size=4).map(tuple), anything, st.text(max_size=3))


@settings(max_examples=100)
@given(st.lists(instructions | likely, max_size=8), st.lists(gets, max_size=3), st.booleans(), st.integers(-1, 9))
def test_no_instruction_whatever_does_harm(code: list, reads: list, ack: bool, forget: int) -> None:
    pool = Pool()
    for mail in pool.say("bad", Batch(1, KINDS, code, tuple(reads), ack, forget)):
        assert mail.peer == "bad"
    pool.unharmed()


@settings(max_examples=100)
@given(st.lists(kinds, max_size=4), st.lists(instructions | likely, max_size=6))
def test_no_definition_of_a_kind_does_harm(definitions: list, code: list) -> None:
    pool = Pool()
    for mail in pool.say("bad", Batch(1, tuple(definitions), [(1, 1, 0.5), *code])):
        assert mail.peer == "bad"
    pool.unharmed()


places = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), max_size=2).map(tuple)
traces = st.builds(
    TraceDef, st.integers(7, 9), st.integers(-1, 4), st.lists(instructions | likely, max_size=5),
    st.lists(st.integers(0, 5), max_size=2).map(tuple), st.lists(places, max_size=2).map(tuple),
    st.lists(st.integers(-1, 3), max_size=2).map(tuple),
)  # fmt: skip
calls = st.tuples(st.integers(7, 9), st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=150)
@given(
    st.lists(traces, max_size=3), st.lists(likely | calls | instructions, max_size=6), st.lists(st.integers(0, 9), max_size=2)
)
def test_no_trace_does_harm(definitions: list, code: list, drops: list) -> None:
    pool = Pool()
    pool.say("bad", Batch(1, KINDS, [(1, 1, 0.5), (1, 2, 1.5)]))
    for trace in definitions:
        pool.say("bad", Batch(2, (), [(1, 3, 0.5)], traces=(trace,)))
    for mail in pool.say("bad", Batch(3, (), code, drops=tuple(drops))):
        assert mail.peer == "bad"
    pool.unharmed()


@given(st.integers(-3, 9), wires, st.binary(max_size=20), st.sampled_from(["bad", "good"]))
def test_no_upload_does_harm(id: int, wire: tuple, data: bytes, claimed: str) -> None:
    pool = Pool()
    pool.worker.handle(Mail("bad", Upload(claimed, id, wire), (data,)))
    pool.worker.handle(Mail("bad", Upload(claimed, id, wire)))
    pool.unharmed()


@given(anything)
def test_no_value_in_place_of_a_message_does_harm(value: object) -> None:
    pool = Pool()
    try:
        message = decode(msgspec.msgpack.encode(value))
    except ProtocolError:
        return
    pool.say("bad", message)
    pool.unharmed()


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
@pytest.mark.parametrize("wire", [(), (-3,), (F,), (F, 2), (F, 2, 2, 2), (0, 2, 2), (6, 2, 2), (F, 4), (F, 0)], ids=str)
def test_a_read_under_a_false_spec_is_answered_with_an_error(engine: str, wire: tuple) -> None:
    pool = Pool(engine)
    [mail] = pool.say("bad", Batch(1, KINDS, [(1, 1, 0.5)], ((9, 1, wire),)))
    assert isinstance(mail.message, Failed) and mail.message.ticket == 9 and mail.message.error == "ProtocolError"
    pool.unharmed()
