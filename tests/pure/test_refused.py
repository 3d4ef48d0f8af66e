"""A message that cannot be carried out fails alone: every read is answered, all other requests of its sender are carried
out, and it is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conversation import Conversation
from msgspec.structs import replace

import gt
from gt.client.tracer import LONGEST
from gt.errors import ProtocolError
from gt.ops import TABLE
from gt.spec import RANK, Layout, Mesh, Shard, Spec, float32
from gt.testing import cluster
from gt.transport import checks
from gt.transport.messages import (
    VERSION,
    Ack,
    Answer,
    Ask,
    Batch,
    Bye,
    Configure,
    Failed,
    Fetch,
    Hello,
    Join,
    KindDef,
    Mail,
    Note,
    Reached,
    Run,
    Store,
    TraceDef,
    Value,
    Welcome,
    decode,
    encode,
)  # fmt: skip
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER

F = float32.code
PAIR = (F, 2, 2)
FULL = KindDef(1, "full", ((-3,),), ((2, 2), F))
ADD = KindDef(2, "add", (PAIR, PAIR), ())


@pytest.fixture
def talk() -> Conversation:
    made = Conversation()
    made.worker("w0")
    made.worker("w1")
    made.client("c")
    made("c", Batch(1, (FULL, ADD), [(1, 1, 3.0)]))
    return made


def answers(mails: list[Mail]) -> dict[int, Any]:
    """The replies to a client's reads, by ticket; reads that a worker answers are True."""
    found: dict[int, Any] = {}
    for mail in mails:
        match mail.message:
            case Failed(ticket) | Answer(ticket):
                found[ticket] = mail.message
            case Run(gets=gets):
                found |= {get.ticket: True for get in gets}
    return found


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


BAD_KINDS = {
    "no such op": KindDef(9, "nothing of the kind", (PAIR,), ()),
    "statics nested 700 deep": KindDef(9, "sum", (PAIR,), (nested(700), False)),
    "statics without end": KindDef(9, "reshape", (PAIR,), ((1,) * (checks.ITEMS + 1),)),
    "a long text": KindDef(9, "einsum" if "einsum" in TABLE else "sum", (PAIR,), ("x" * (checks.TEXT + 1), 1)),
    "a negative size": KindDef(9, "full", ((-3,),), ((2, -2), F)),
    "a size past 64 bits": KindDef(9, "full", ((-3,),), ((1 << 40, 1 << 40), F)),
    "too many axes": KindDef(9, "exp", ((F, *(1,) * (RANK + 1)),), ()),
    "a table": KindDef(9, "sum", (PAIR,), {"axis": 0}),
    "a collective": KindDef(9, "all_reduce", (PAIR, (-2,)), ((0, 1), "sum")),
    "a long signal": KindDef(9, "exp", (PAIR,), (), "s" * (checks.NAME + 1)),
}


@pytest.mark.parametrize("kind", BAD_KINDS.values(), ids=BAD_KINDS)
def test_an_invalid_kind_fails_only_its_own_results(talk: Conversation, kind: KindDef) -> None:
    reads = ((7, 2, PAIR), (8, 3, PAIR), (9, 1, PAIR), (10, 4, PAIR))
    mails = talk("c", Batch(2, (kind,), [(2, 2, 1, 1), (9, 3, 1), (2, 4, 3, 1)], reads, True))
    told = answers(mails)
    assert told[7] is True and told[9] is True
    assert told[8].error == told[10].error == "ProtocolError" and told[8].text == told[10].text
    assert talk.tables.dropped == 2  # the kind, and the instruction of it
    assert answers(talk("c", Batch(3, (), [], ((11, 3, PAIR),))))[11].text == told[8].text


def test_odd_statics_that_a_sharding_rule_stumbles_over_cost_that_instruction(talk: Conversation) -> None:
    """With several workers, rules look at statics that shapes do not depend on."""
    talk("c", Configure({"s": {"mesh": None, "axes": [0], "workers": None}}))
    full = KindDef(5, "full", ((-3,),), ((4, 4), F), "s")
    wide = (F, 4, 4)
    odd = [KindDef(10 + i, "sum", (wide,), statics) for i, statics in enumerate([(("x",), False), ((1.5,), True)])]
    odd.append(KindDef(20, "softmax", (wide,), ("axis",)))
    code = [(5, 50, 1.0), *[(k.number, k.number, 50) for k in odd], (2, 51, 1, 1)]
    told = answers(
        talk("c", Batch(2, (full, *odd), code, tuple((k.number, k.number, (F, 4)) for k in odd) + ((99, 51, PAIR),)))
    )
    assert told.pop(99) is True
    assert set(told) == {k.number for k in odd}


@pytest.mark.parametrize("id", [0, -1, -4096, -4097, -(1 << 50), -0.5, float("nan")])
@pytest.mark.parametrize("made_by", ["a kind", "a kind of two results", "a trace", "a kind on several workers", "a load"])
def test_ids_that_workers_use_for_temporaries_are_refused_for_results(talk: Conversation, made_by: str, id: float) -> None:
    """A plan for several workers has temporaries under such ids: it would write over the client's tensor, or free it."""
    talk("c", Configure({"s": {"mesh": None, "axes": [0], "workers": None}}))
    kinds = (
        KindDef(3, "full", ((-3,),), ((2, 2), F), "s"), KindDef(4, "load", ((-2,), (-2,), (-2,)), ((2, 2), (2, 2), (0, 0), F)),
        KindDef(5, "topk", (PAIR,), (1, 1, True)),
    )  # fmt: skip
    trace = TraceDef(9, 1, [(2, 2, 1, 1), (2, 3, 2, 1)], (2, 3))
    code = {
        "a kind": (2, id, 1, 1), "a kind of two results": (5, 50, id, 1), "a trace": (9, 50, id, 1),
        "a kind on several workers": (3, id, 1.0), "a load": (4, id, -1, 0, 16),
    }[made_by]  # fmt: skip
    mails = talk("c", Batch(2, kinds, [code, (2, 60, 1, 1)], ((7, 60, PAIR),), traces=(trace,)))
    sent = [ins for mail in mails if isinstance(mail.message, Run) for ins in mail.message.code if ins[0] > 0]
    assert sent == [(2, 60, 1, 1)] and answers(mails)[7] is True
    lost = [entry for id, entry in talk.tables.clients["c"].entries.items() if id not in (1, 60)]
    assert lost and all("expected a positive integer" in entry.why for entry in lost), lost
    assert talk.tables.dropped == 1


def test_operands_of_another_spec_than_the_kind_s_never_reach_a_worker(talk: Conversation) -> None:
    wide = (F, 2000, 2000)
    adam = KindDef(5, "exp", (wide,), ())
    mails = talk("c", Batch(2, (adam,), [(5, 2, 1)], ((7, 2, wide),)))
    assert not [m for m in mails if isinstance(m.message, Run) and m.message.code]
    assert "expected an operand of Spec((2000, 2000), gt.float32), got Spec((2, 2), gt.float32)" in answers(mails)[7].text


def test_a_trace_whose_registers_do_not_agree_is_refused_and_its_inputs_end(talk: Conversation) -> None:
    row = KindDef(5, "exp", ((F, 3),), ())
    body = [(2, 2, 1, 1), (5, 3, 2)]
    mails = talk("c", Batch(2, (row,), [(9, 8, 1)], ((7, 8, (F, 3)),), traces=(TraceDef(9, 1, body, (3,), (), (0,)),)))
    assert "expected an operand of Spec((3,)" in answers(mails)[7].text
    assert set(talk.tables.clients["c"].entries) == {8}  # the input was to end with the call


def test_an_input_of_another_spec_than_the_trace_takes_is_refused(talk: Conversation) -> None:
    row = KindDef(5, "full", ((-3,),), ((3,), F))
    trace = TraceDef(9, 1, [(2, 2, 1, 1)], (2,), (), ())
    mails = talk("c", Batch(2, (row,), [(5, 2, 1.0), (9, 8, 2), (9, 10, 1)], ((7, 8, PAIR), (8, 10, PAIR)), traces=(trace,)))
    told = answers(mails)
    assert told[8] is True and "expected an operand of Spec((2, 2)" in told[7].text


def test_a_read_under_another_spec_than_the_tensor_s_is_answered_with_an_error(talk: Conversation) -> None:
    told = answers(talk("c", Batch(2, (), [], ((7, 1, (F, 4)), (8, 1, PAIR)))))
    assert told[8] is True and told[7].error == "ProtocolError"


@pytest.mark.parametrize(
    "argument", [[[1]], [1.5], {"id": 1}, "x", None, [], [1, [2]], nested(700)], ids=lambda a: repr(a)[:12]
)
def test_a_question_that_nobody_understands_is_answered(talk: Conversation, argument: Any) -> None:
    [mail] = talk("c", Ask(1, "placement", argument))
    assert mail.peer == "c" and mail.message.ticket == 1


def test_a_configuration_that_cannot_be_is_told_of(talk: Conversation) -> None:
    for signals in ({"s": {"mesh": [1] * 99, "axes": [0] * 99, "workers": None}}, {"s": nested(700)}, {"s": 1}):
        [mail] = talk("c", Configure(signals))
        assert mail.peer == "c" and isinstance(mail.message, Note)
    assert not talk.tables.clients["c"].signals


OFFER = "1 2 3 " + "ab" * 16
UNREACHABLE = [
    ("x",),
    ("host:port",),
    ("h:99999",),
    (":1",),
    ("h:1\n",),
    ("h" * 999,),
    ("", "g\n"),
    ("", "", "offer"),
    ("", "", "1 2 3 ab"),
]


@pytest.mark.parametrize("fields", UNREACHABLE)
def test_a_store_that_cannot_be_reached_is_made_known_to_nobody(talk: Conversation, fields: tuple[str, ...]) -> None:
    assert talk("w0", Store(Reached(*fields))) == [] and talk.tables.workers[0].reached is None
    for fitting in (("10.0.0.1:4711", "GPU-1", OFFER), ("", "", OFFER), ()):  # it need not keep a store
        talk("w0", Store(Reached(*fitting)))
        assert talk.tables.workers[0].reached == Reached(*fitting)


def test_a_worker_that_gives_itself_out_for_another_is_refused(talk: Conversation) -> None:
    """Others would read the memory, and leave word at the door, of a worker that knows nothing of it."""
    talk("w0", Store(Reached(memory=OFFER)))
    assert talk("w1", Store(Reached(memory=OFFER))) == [] and talk.tables.workers[1].reached is None
    [mail] = talk("odd", Join(VERSION, "", "odd", "numpy", "cpu", "here", 8, "ipc://w0"))
    assert mail.peer == "odd" and "address ipc://w0 belongs to worker w0 already" in mail.message.why
    talk.gone("w0")
    assert isinstance(talk("odd", Join(VERSION, "", "odd", "numpy", "cpu", "here", 8, "ipc://w0"))[0].message, Welcome)
    talk("w1", Store(Reached(memory=OFFER)))
    assert talk.tables.workers[1].reached == Reached(memory=OFFER)


def test_a_batch_that_could_not_be_handled_at_all_answers_its_reads(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(talk.dispatcher.stream, "_ready", fails)
    mails = talk("c", Batch(2, (), [(2, 2, 1, 1)], ((7, 2, PAIR), (8, 1, PAIR)), True))
    assert set(answers(mails)) == {7, 8} and mails[-1] == Mail("c", Ack(2))
    monkeypatch.undo()
    assert "a mistake of ours" in answers(talk("c", Batch(3, (), [], ((9, 2, PAIR),))))[9].text


@pytest.mark.parametrize(
    "message",
    [
        Batch(2, (), [], tuple((i, 1, PAIR) for i in range(checks.READS + 1))),
        Batch(2, (FULL,) * (checks.DEFINITIONS + 1), []),
        Batch(2, (), [], traces=(TraceDef(9, 0, [()] * (checks.BODY + 1), ()),)),
        Batch(2, (), [], traces=(TraceDef(9, 1, [(2, 2 + i, 1, 1) for i in range(checks.TRACE + 1)], (2,)),)),
    ],
    ids=["reads", "kinds", "traces", "a long trace"],
)
def test_a_client_that_asks_for_too_much_at_once_is_let_go_and_told_why(talk: Conversation, message: Batch) -> None:
    mails = talk("c", message)
    assert isinstance(mails[0].message, Bye) and "the most" in mails[0].message.why
    assert "c" not in talk.tables.clients


def test_a_client_whose_message_cannot_be_read_is_let_go_as_it_may_wait_for_an_answer(talk: Conversation) -> None:
    mails = talk.dispatcher.unreadable("c", ProtocolError("no message"))
    assert isinstance(mails[0].message, Bye) and "c" not in talk.tables.clients
    assert talk.dispatcher.unreadable("stranger", ProtocolError("no message")) == []


def test_messages_that_wait_for_a_worker_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "HELD", 10)
    talk = Conversation()
    talk.client("c")
    for serial in range(1, 4):
        assert talk("c", Batch(serial, (FULL,) if serial == 1 else (), [(1, serial, 1.0), (0, serial)])) == []
    assert isinstance(talk("c", Batch(4, (), [(1, 9, 1.0)]))[0].message, Bye)


def test_a_read_on_a_server_without_workers_is_answered_in_the_end() -> None:
    talk = Conversation()
    talk.client("c")
    assert talk("c", Batch(1, (FULL,), [(1, 1, 3.0)], ((7, 1, PAIR),))) == []
    assert talk.dispatcher.tick(100.0) == [] and talk.dispatcher.tick(159.0) == []
    [mail] = talk.dispatcher.tick(161.0)
    assert mail.message.ticket == 7 and "no worker has joined" in mail.message.text
    assert talk.dispatcher.tick(300.0) == []
    talk.worker("w0")  # the operand of its read is computed all the same
    assert answers(talk("c", Batch(2, (), [], ((8, 1, PAIR),)))) == {8: True}


def test_a_dispatcher_that_a_client_started_leaves_the_wait_for_a_worker_to_it() -> None:
    talk = Conversation()
    talk.dispatcher.tables.joins_within = float("inf")
    talk.client("c")
    assert talk("c", Batch(1, (FULL,), [(1, 1, 3.0)], ((7, 1, PAIR),))) == []
    assert talk.dispatcher.tick(100.0) == [] and talk.dispatcher.tick(9000.0) == []
    talk.worker("w0")
    assert answers(talk("c", Batch(2, (), [], ((8, 1, PAIR),)))) == {8: True}


@pytest.mark.parametrize("message", [Hello(1, "", "h" * 999, 7), Join(1, "", "n" * 999, "numpy", "cpu", "h", 1, "ipc://x")])
def test_who_introduces_itself_at_too_great_length_is_refused(talk: Conversation, message: Any) -> None:
    [mail] = talk("new", message)
    assert mail.peer == "new" and isinstance(mail.message, Bye)


# Workers


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_a_worker_compares_operands_with_their_kinds(engine: str) -> None:
    """Were the dispatcher wrong: no kernel gets operands of other specs."""
    worker = Worker(make(engine))
    three = (F, 3)
    kinds = (FULL, ADD, KindDef(3, "exp", (three,), ()), KindDef(4, "sum", ((F, 3, 3),), ((0,), False)),
             KindDef(5, "add", (three, three), ()))  # fmt: skip
    trace = TraceDef(9, 1, [(3, 2, 1)], (2,))
    code = [(1, 1, 3.0), (3, 2, 1), (4, 3, 1), (5, 4, 1, 1), (9, 5, 1), (2, 6, 1, 1)]
    gets = tuple(Fetch(i, i, PAIR, (0, 0), (2, 2)) for i in range(2, 7))
    mails = worker.handle(Mail(DISPATCHER, Run("c", 1, kinds, code, gets, traces=(trace,))))
    for mail in mails[:4]:
        assert isinstance(mail.message, Failed) and "got [Spec((2, 2), gt.float32)" in mail.message.text
    assert isinstance(mails[4].message, Value)


def test_each_used_operand_of_a_call_is_compared() -> None:
    worker, three = Worker(make("numpy")), (F, 3)
    kinds = (FULL, ADD, KindDef(3, "full", ((-3,),), ((3,), F)), KindDef(4, "sum", (three,), ((0,), False)))
    trace = TraceDef(9, 4, [(2, 5, 1, 2), (4, 6, 3)], (5, 6))  # its fourth input is used by nothing
    right, swapped, other, unknown, unused = (1, 1, 2, 2), (1, 2, 1, 2), (1, 1, 1, 2), (1, 77, 2, 2), (1, 1, 2, 1)
    calls = [(9, 10 * n, 10 * n + 1, *given) for n, given in enumerate((right, swapped, other, unknown, unused), 1)]
    gets = tuple(Fetch(10 * n, 10 * n, PAIR, (0, 0), (2, 2)) for n in range(1, 6))
    run = Run("c", 1, kinds, [(1, 1, 3.0), (3, 2, 1.0), *calls], gets, traces=(trace,))
    answered = [type(mail.message) for mail in worker.handle(Mail(DISPATCHER, run))]
    assert answered[:5] == [Value, Failed, Failed, Failed, Value]


def test_a_kind_that_a_worker_cannot_prepare_costs_its_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(make("numpy"))
    kernel = worker.engine.kernel

    def fails(kind: Any) -> Any:
        if kind.row.name == "exp":
            raise MemoryError("no room for a kernel")
        return kernel(kind)

    monkeypatch.setattr(worker.engine, "kernel", fails)
    exp, trace = KindDef(3, "exp", (PAIR,), ()), TraceDef(9, 1, [(3, 2, 1)], (2,))
    gets = tuple(Fetch(i, i, PAIR, (0, 0), (2, 2)) for i in (1, 2, 3))
    run = Run("c", 1, (FULL, exp), [(1, 1, 3.0), (3, 2, 1), (9, 3, 1)], gets, True, traces=(trace,))
    mails = worker.handle(Mail(DISPATCHER, run))
    assert isinstance(mails[0].message, Value) and worker.dropped == 2
    assert "no room for a kernel" in mails[1].message.text and isinstance(mails[2].message, Failed)


def test_a_run_that_a_worker_cannot_handle_at_all_answers_its_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, said = Worker(make("numpy")), []
    worker.tell = said.append

    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(worker.definitions, "define", fails)
    mails = worker.handle(Mail(DISPATCHER, Run("c", 1, (FULL,), [], (Fetch(7, 1, PAIR, (0, 0), (2, 2)),), True)))
    assert [type(m.message).__name__ for m in mails] == ["Failed", "Done"]
    assert any("a mistake of ours" in line for line in said) and any("Traceback" in line for line in said)


# Users


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: gt.eye(-1),
        lambda: gt.linspace(0, 1, -1),
        lambda: gt.randperm(-1),
        lambda: gt.nn.functional.conv_transpose2d(gt.ones(1, 1, 3, 3), gt.ones(1, 1, 2, 2), padding=9),
        lambda: gt.zeros(2, -3),
        lambda: gt.zeros(1 << 40, 1 << 40),
        lambda: gt.zeros(*[1] * 65),
    ],
    ids=["eye", "linspace", "randperm", "conv_transpose2d", "zeros", "too large", "too many axes"],
)
def test_a_size_that_no_tensor_has_raises_on_the_user_s_line(mistake: Any) -> None:
    with cluster(1):
        x = gt.ones(3)
        with pytest.raises((ValueError, RuntimeError)):
            mistake()
        np.testing.assert_array_equal((x + 1).numpy(), [2, 2, 2])


def test_specs_and_layouts_are_let_go_with_their_last_user() -> None:
    import gc

    gc.collect()
    specs, layouts = len(Spec._known), len(Layout._known)
    kept = [(Spec((9, 8, i)), Layout(Mesh((2,), (i, i + 1)), (Shard(0),))) for i in range(1000, 2000)]
    assert Spec((9, 8, 1500)) is kept[500][0] and Layout(Mesh((2,), (1500, 1501)), (Shard(0),)) is kept[500][1]
    assert len(Spec._known) >= specs + 1000
    kept.clear()
    gc.collect()
    assert len(Spec._known) <= specs and len(Layout._known) <= layouts


def test_a_shape_of_numpy_s_numbers_is_kept_as_python_s() -> None:
    assert [type(d) for d in Spec((np.int64(1234567), True)).shape] == [int, int]
    with pytest.raises(TypeError):
        Spec((1.5,))  # type: ignore[arg-type]


def test_a_message_that_would_fill_the_dispatcher_is_not_even_read() -> None:
    """Reads of nothing: decoding and answering them would take thirty times their bytes."""
    data = encode(Batch(1, (), [], tuple((i, 1 << 40, PAIR) for i in range(700_000))))
    assert len(data) > checks.MESSAGE
    with pytest.raises(ProtocolError, match="over the limit"):
        decode(data, checks.MESSAGE)


def test_kinds_and_instructions_of_many_operands_count_as_several(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client that sends 50 kilobytes has the dispatcher keep three megabytes, a quarter of a million times."""
    monkeypatch.setattr(checks, "KNOWN", 50)
    cat = KindDef(10, "cat", (PAIR,) * 1000, (0,))
    before = talk.tables.clients["c"].known
    talk("c", Batch(2, (cat,), []))
    assert talk.tables.clients["c"].known == before + checks.size(cat) == before + 32
    talk("c", Batch(3, (), [], traces=(TraceDef(100, 1000, [(10, 1001, *range(1, 1001))], (1001,)),)))
    assert talk.tables.clients["c"].traced == 32
    assert "c" in talk.tables.clients
    talk("c", Batch(4, (replace(cat, number=11),), []))
    mails = talk("c", Batch(5, (), []))
    assert any(isinstance(m.message, Bye) and "the most are" in m.message.why for m in mails)
    assert "c" not in talk.tables.clients
    monkeypatch.setattr(checks, "DEFINED", 1 << 17)
    with pytest.raises(checks.TooMuch, match="operands in the kinds of a batch"):
        checks.message(Batch(6, tuple(replace(cat, number=n) for n in range(1, 200)), []))


def test_the_traces_of_a_client_are_bounded_together_and_dropped_ones_do_not_count(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "TRACED", 40)

    def trace(number: int) -> TraceDef:
        return TraceDef(number, 1, [(2, n + 2, n + 1, n + 1) for n in range(15)], (16,))

    talk("c", Batch(2, (), [], traces=(trace(100), trace(101))))
    assert talk.tables.clients["c"].traced == 30
    for n in range(102, 120):
        talk("c", Batch(n, (), [], traces=(trace(n),), drops=(n - 2,)) if n % 2 else Batch(n, (), [], drops=(n - 2, n - 1)))
    assert "c" in talk.tables.clients and talk.tables.clients["c"].traced <= 40
    mails = talk("c", Batch(200, (), [], traces=(trace(200), trace(201), trace(202))))
    assert any(isinstance(m.message, Bye) and "the most are 40" in m.message.why for m in mails)
    assert "c" not in talk.tables.clients


def test_a_trace_may_be_as_long_as_a_client_records() -> None:
    assert checks.TRACE == LONGEST
