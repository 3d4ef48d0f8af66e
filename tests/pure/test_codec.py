"""Messages as bytes: a decoded message equals the encoded one, and invalid bytes are refused."""

from __future__ import annotations

import contextlib
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.ops import TABLE, infer
from gt.ops.table import spec_out
from gt.program.code import FREE
from gt.spec import Spec
from gt.transport import events as e
from gt.transport import messages as m
from gt.transport.checks import kind_in

ADD = m.KindDef(3, "add", ((8, 2, 2), (-3,)), [])
PEER = m.Peer(0, "w0", "ipc://@x", "here")
EACH = [
    m.Hello(m.VERSION, "key", "here", 7),
    m.Welcome("c", 0, (PEER,)),
    m.Batch(1, (ADD,), [(3, 2, 1, 0.5), (FREE, 1)], ((9, 2, (8, 2, 2)),), True, 4),
    m.Ack(1),
    m.Failed(9, "RemoteError", "why", 2),
    m.Peers((PEER,), "lost"),
    m.Ask(1, "stats", [1, "x", None]),
    m.Answer(1, {"a": [1.5, True]}),
    m.Configure({"layer": {"shard": {"axis": 0}}}),
    m.Bye("done"),
    m.Join(m.VERSION, "key", "w0", "numpy", "cpu", "here", 8, "ipc://@x"),
    m.Run("c", 1, (ADD,), [(3, 2, 1, 0.5)], (m.Fetch(9, 2, (8, 2, 2), (0, 0), (2, 2)),), True, 4),
    m.Done("c", 1),
    m.Drop("c"),
    m.Begun(1, (((0, 1), 2),)),
    m.Skip(1, (((0, 1), 2),)),
    m.Refuse("c", "why"),
    m.Progress("c", 1),
    m.Drain(),
    m.Came("c", 2.0, 1 << 30, "alice", 1.5, 1 << 31, True),
    m.Attach("c", b"\0token"),
    m.Attached(0, True),
    m.Value(9, (8, 2, 2), (0, 0), (2, 2), 1, (5, 0, 8)),
    m.Start(7, ((1, 64, 32),)),
    m.SmallValues((m.Value(9, (8,), (), (), 1, None, b"\0\0\0\0"),)),
    m.Release(5),
    m.Upload("c", 2, (8, 2, 2), (0,)),
    m.Arrived("c", 2),
    m.Note("text", 2, "c"),
    m.Piece(0, "c", 2, "why"),
    m.Store(m.Reached("127.0.0.1:80", "gpu")),
    m.InputFailed(1, (0, 1), 3, "RemoteError", "why", 2),
    m.StallQuery(1, (0, 1), 3),
    m.Aborted(1, (0, 1), 7, "OutOfMemory", "no room", 3),
    m.Noted(0, (0, 1), 3),
    m.Ways(1, (0, 1), ("memory",)),
    e.Subscribe(m.VERSION, e.EVERY, "c"),
    e.Listen(e.SAMPLED, (("c", e.EVERY),)),
    e.WorkerReport((e.Waited("c", 1.5, 0.5, "train.py:3", 4), e.Joined("w0", 1.5, 0, "numpy on cpu"))),
    e.Watched(1, (e.Spans("c", b"", b"", b"", b"", meanings=(e.Meaning(3, "add", "elementwise"),)),), 2),
    e.Seen(1),
]


def test_the_samples_cover_every_message() -> None:
    assert {type(x) for x in EACH} == set(get_args(m.Any_))


@pytest.mark.parametrize("message", EACH, ids=lambda x: type(x).__name__)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    assert m.decode(m.encode(message)) == message


@pytest.mark.parametrize("message", EACH, ids=lambda x: type(x).__name__)
def test_a_message_is_an_array_with_its_tag_first(message: Any) -> None:
    raw = msgspec.msgpack.decode(m.encode(message))
    assert isinstance(raw, list) and isinstance(raw[0], int)


def test_tags_are_different() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(m.Any_)]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("message", EACH, ids=lambda x: type(x).__name__)
def test_a_truncated_message_is_refused(message: Any) -> None:
    data = m.encode(message)
    for n in range(len(data)):
        with pytest.raises(ProtocolError):
            m.decode(data[:n])


@given(st.binary(max_size=200))
@example(b"\x91" * 5000)
@example(b"")
@settings(deadline=None)
def test_foreign_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(m.decode(data), m.Message)


@given(st.sampled_from(EACH), st.integers(0, 400), st.integers(0, 255))
@settings(deadline=None)
def test_a_changed_byte_is_a_message_or_a_protocol_error(message: Any, at: int, byte: int) -> None:
    data = bytearray(m.encode(message))
    data[at % len(data)] = byte
    with contextlib.suppress(ProtocolError):
        assert isinstance(m.decode(bytes(data)), m.Message)


def test_an_oversized_message_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        m.decode(memoryview(bytearray(m.LIMIT + 1)))


def test_fields_that_a_newer_peer_adds_are_ignored_and_those_an_older_lacks_have_defaults() -> None:
    raw = msgspec.msgpack.decode(m.encode(m.Ack(5)))
    assert m.decode(msgspec.msgpack.encode([*raw, "from the future"])) == m.Ack(5)
    batch = msgspec.msgpack.decode(m.encode(m.Batch(1, (), [])))
    assert m.decode(msgspec.msgpack.encode(batch[:4])) == m.Batch(1, (), [])


def test_an_instruction_takes_few_bytes() -> None:
    code = [(3, i, i - 1, i - 2) for i in range(10_000, 10_512)]
    assert len(m.encode(m.Batch(1, (), code))) / 512 <= 12


def tried() -> list[tuple[str, tuple, dict]]:
    return [(name, operands, statics) for name, row in TABLE.items() for operands, statics in row.tries]


@pytest.mark.parametrize(("name", "operands", "statics"), tried(), ids=[t[0] for t in tried()])
def test_a_kind_comes_back_from_the_wire(name: str, operands: tuple, statics: dict) -> None:
    row = TABLE[name]
    operands = tuple(getattr(o, "spec", o) for o in operands)
    ins = tuple(o if isinstance(o, (Spec, type)) else type(o) for o in operands)
    kind = infer(row, ins, tuple(statics[s] for s in row.statics))
    back = kind_in(msgspec.msgpack.decode(m.encode(m.kind_out(5, kind)), type=m.KindDef))
    assert (back.row, back.ins, back.statics, back.outs) == (kind.row, kind.ins, kind.statics, kind.outs)


F2 = spec_out(Spec((2, 2)))
FALSE_KINDS = [
    m.KindDef(1, "no such op", (), ()),
    m.KindDef(1, "add", (F2,), ()),
    m.KindDef(1, "add", (F2, F2, F2), ()),
    m.KindDef(1, "add", (), ()),
    m.KindDef(1, "add", ((-3,), (-3,)), ()),
    m.KindDef(1, "matmul", (F2, spec_out(Spec((3, 3)))), ()),
    m.KindDef(1, "matmul", (F2, (-2,)), ()),
    m.KindDef(1, "sum", (F2,), None),
    m.KindDef(1, "sum", (F2,), {"axis": 0}),
    m.KindDef(1, "reshape", (F2,), ("wrong",)),
    m.KindDef(1, "reshape", (F2,), ((-1, -4),)),
    m.KindDef(1, "full", ((-3,),), ((2, 2), 99)),
    m.KindDef(1, "full", ((-3,),), ((2, -2), 8)),
    m.KindDef(1, "full", ((-3,),), ([[2]], 8)),
    m.KindDef(1, "load", ((-2,),) * 3, ((2.5,), (2.5,), (0,), 8)),
    m.KindDef(1, "cat", (), (0,)),
    m.KindDef(1, "slice", (F2, (-2,), (-2,)), (((1, 1), (1,)),)),
]


@pytest.mark.parametrize("definition", FALSE_KINDS, ids=lambda d: f"{d.op} {d.ins} {d.statics}")
def test_a_kind_that_cannot_be_is_refused(definition: m.KindDef) -> None:
    with pytest.raises(ProtocolError):
        kind_in(definition)
