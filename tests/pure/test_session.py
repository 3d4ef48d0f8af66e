"""A client's stream: its messages, when they are sent, and when it waits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from wire import Wire, gives

import gt
from gt import errors
from gt.client import kinds
from gt.client.batch_lengths import BATCH, MORE, STEP
from gt.client.default import STARTED, STARTING
from gt.client.link import await_answer
from gt.client.loads import LARGE
from gt.client.replies import Reply
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.client.window import WINDOW
from gt.program.code import FREE
from gt.transport.messages import Ack, Answer, Ask, Batch, Failed, Mail, Peer, Peers, Upload, Value


def test_an_op_sends_nothing_and_wakes_the_link_once(wire: Wire) -> None:
    x = gt.ones(2)
    y = x + x
    assert (wire.sent, wire.wakes, wire.waits) == ([], 1, 0) and y.shape == (2,)


def test_a_full_buffer_is_sent_without_waiting(wire: Wire) -> None:
    x = gt.ones(2)
    made = [x + i for i in range(BATCH)]
    assert len(wire.sent) == 1 and len(wire.sent[0].code) == BATCH and wire.waits == 0
    assert len({id(m) for m in made}) == BATCH


def test_a_burst_begins_with_a_small_batch_and_each_is_twice_the_one_before(wire: Wire) -> None:
    wire.session.tracer = None
    x = gt.ones(2)
    kept = [x + i for i in range(3 * MORE)]
    sizes = [len(batch.code) for batch in wire.sent]
    assert sizes[:3] == [BATCH, 2 * BATCH, 4 * BATCH] and max(sizes) == MORE and len(kept) == 3 * MORE
    wire.session.flush()
    wire.sent.clear()
    kept += [x + i for i in range(BATCH)]
    assert [len(batch.code) for batch in wire.sent] == [BATCH]


def test_a_load_sends_the_step_before_it_and_the_next_one_behind_twice_as_many(wire: Wire) -> None:
    wire.session.tracer = None
    x = gt.ones(2)
    kept = []
    for step in (STEP, STEP, STEP):
        kept += [x + i for i in range(step)]
        kept.append(gt.from_numpy(np.ones(4096, np.float32)))
    assert len(wire.sent) == 2 and len(wire.sent[1].code) >= 2 * STEP and len(kept) == 3 * (STEP + 1)


def test_before_a_read_that_comes_again_batches_grow_shorter(wire: Wire) -> None:
    """Workers have one step left to do when the client begins to wait for them."""
    wire.session.tracer = None
    gives(wire, np.zeros((), np.float32))
    x, ops, kept = gt.ones(2), STEP + 10, []

    def steps(count: int) -> None:
        for _ in range(count):
            gt.from_numpy(np.ones(4096, np.float32))
            kept.extend([x + i for i in range(ops)])

    def ten_and_a_read() -> list[int]:
        wire.sent.clear()
        steps(10)
        kept[-1].sum().item()
        return [len(batch.code) for batch in wire.sent]

    first, again = ten_and_a_read(), ten_and_a_read()
    assert first[-1] > 2 * ops and again[-1] < 2 * ops and len(again) <= len(first) + 2
    steps(40)  # no read comes where the last ones did
    assert len(wire.sent[-1].code) > 4 * ops


def test_a_large_load_is_sent_at_once(wire: Wire) -> None:
    """Workers copy it while Python writes the step: in small steps nothing was sent until 16 MB had been loaded."""
    data = np.ones(LARGE // 4 + 1, np.float32)
    kept = []
    for step in range(3):
        x = gt.from_numpy(data)
        assert len(wire.sent) == step + 1 and len(wire.placed) == step + 1
        kept += [x, (x * 2.0).sum(), x.mean()]
    assert wire.waits == 0 and len(kept) == 9


def test_a_kind_is_defined_once_before_its_first_use(wire: Wire) -> None:
    x = gt.ones(2)
    y = (x + x) * 2.0 + x
    wire.session.flush()
    z = x + y
    wire.session.flush()
    first, second = wire.sent
    assert [k.op for k in first.kinds] == ["full", "add", "mul"] and second.kinds == ()
    defined = {k.number for k in first.kinds}
    assert {ins[0] for ins in wire.code} <= defined | {FREE} and z.shape == (2,)


def test_numbers_travel_in_the_instruction_so_that_a_changing_one_needs_no_new_kind(wire: Wire) -> None:
    x = gt.ones(2)
    made = [x * float(i) for i in range(5)]
    wire.session.flush()
    assert [k.op for k in wire.sent[0].kinds] == ["full", "mul"]
    assert [ins[3] for ins in wire.code[1:]] == [0.0, 1.0, 2.0, 3.0, 4.0] and len(made) == 5


def test_frees_ride_along_in_order(wire: Wire) -> None:
    x = gt.ones(2)
    y = x + x
    del x
    z = y + y
    del y
    wire.session.flush()
    kinds = [ins[0] == FREE for ins in wire.code]
    assert kinds == [False, False, True, False, True]
    assert wire.code[2] == (FREE, 1) and wire.code[4] == (FREE, 2) and z.shape == (2,)


def test_a_read_flushes_asks_and_returns_the_value(wire: Wire) -> None:
    x = gt.ones(2, 2)
    gives(wire, np.array([[1, 2], [3, 4]], "f4"))
    assert x.tolist() == [[1, 2], [3, 4]]
    assert len(wire.sent) == 1 and wire.sent[0].gets[0][1] == x.handle.id
    assert not wire.session.replies


@pytest.mark.parametrize(("devices", "pays"), [((), False), (("cpu",), False), (("cpu", "cuda NVIDIA H200"), True)])
def test_few_ops_before_a_read_become_a_trace_where_not_all_workers_are_cpus(wire: Wire, devices: tuple, pays: bool) -> None:
    workers = tuple(Peer(i, f"w{i}", f"ipc://w{i}", "here", device) for i, device in enumerate(devices))
    wire.session.handle(Mail("", Peers(workers)))
    assert wire.session.tracer is not None and wire.session.tracer.questions.pay() is pays


def test_pieces_of_a_value_are_put_together_in_any_order(wire: Wire) -> None:
    x = gt.ones(3, 2)

    def answer(reply: Reply) -> None:
        spec = wire.sent[-1].gets[0][2]
        lower = Value(reply.ticket, (spec[0], 1, 2), (2, 0), (3, 2), 2)
        upper = Value(reply.ticket, (spec[0], 2, 2), (0, 0), (3, 2), 2)
        wire.session.handle(Mail("w1", lower, (np.array([5, 6], "f4").tobytes(),)))
        assert not reply.done
        wire.session.handle(Mail("w0", upper, (np.array([1, 2, 3, 4], "f4").tobytes(),)))

    wire.answer = answer
    assert x.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_an_interrupted_read_leaves_the_session_usable(wire: Wire) -> None:
    x = gt.ones(2)

    def interrupt(reply: Reply) -> None:
        raise KeyboardInterrupt

    wire.answer = interrupt
    with pytest.raises(KeyboardInterrupt):
        x.numpy()
    ticket = wire.sent[-1].gets[0][0]
    late = Value(ticket, wire.sent[-1].gets[0][2], (0,), (2,), 1)
    wire.session.handle(Mail("w0", late, (np.array([9, 9], "f4").tobytes(),)))
    gives(wire, np.array([1, 2], "f4"))
    assert x.tolist() == [1, 2]


def test_work_under_way_is_bounded(wire: Wire) -> None:
    x = gt.ones(2)
    wire.answer = lambda reply: wire.session.handle(Mail("", Ack(wire.session.window.asked[-1][0])))
    for _ in range(2 * WINDOW):
        x = x + 1
        assert wire.session.window.sent - wire.session.window.executed <= WINDOW + MORE
    assert wire.waits > 0 and any(m.ack for m in wire.sent)


def test_device_seconds_under_way_are_bounded_before_instructions_are(wire: Wire) -> None:
    """512 products of 2,048 x 2,048 are some 70 seconds of a core: nobody reads, and the session waits in an op."""
    window, measured = wire.session.window, 0.0

    def acknowledge(reply: object) -> None:
        nonlocal measured
        serial, _, estimated = window.asked[-1]
        measured = estimated / 50  # on a faster device
        wire.session.handle(Mail("", Ack(serial, measured)))

    wire.answer = acknowledge
    x = gt.ones(2048, 2048)
    for _ in range(512):
        x = x @ x
    early, waits = window.sent, window.waits
    assert waits and early < WINDOW
    for _ in range(4096):
        x = x @ x
        assert window.sent - window.executed <= WINDOW + MORE and window.seconds() < 300
    assert 0.02 <= window.rate < 0.2, "times that workers measure correct the estimate"
    assert gt.debug.in_flight()["waits"] == window.waits > waits


def test_acknowledgements_are_asked_for_seldom(wire: Wire) -> None:
    wire.answer = lambda reply: wire.session.handle(Mail("", Ack(wire.session.window.asked[-1][0])))
    x = gt.ones(2)
    for _ in range(4 * WINDOW):
        x = x + 1
    asked, written = sum(m.ack for m in wire.sent), 8 * WINDOW  # as many frees as ops
    assert 1 <= asked <= written / (WINDOW // 4)


def test_convolutions_in_flight_are_bounded_by_their_products(wire: Wire) -> None:
    """48 convolutions of 0.7 seconds each on one core: their elements alone would take 0.3 seconds in all."""
    window = wire.session.window
    wire.answer = lambda reply: wire.session.handle(Mail("", Ack(window.asked[-1][0])))
    x, w = gt.ones(64, 64, 56, 56), gt.ones(64, 64, 3, 3)
    for _ in range(48):
        gt.nn.functional.conv2d(x, w, padding=1)
        wire.session.flush()
        assert window.seconds() < 3
    assert window.waits > 10


def test_kinds_are_forgotten_past_a_bound_and_learnt_again(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MOST", 20)
    for n in range(1, 40):
        gt.ones(n)
    wire.session.flush()
    assert wire.sent[-1].forget > 0 and wire.session.window.costs.each.keys() == {k.number for k in wire.sent[-1].kinds}
    gt.ones(1)
    wire.session.flush()
    again = wire.sent[-1].kinds
    assert [k.op for k in again] == ["full"] and again[0].number >= wire.sent[-2].forget


def test_a_failed_read_raises_with_the_line_that_asked(wire: Wire) -> None:
    x = gt.ones(2)
    y = x.exp()  # the line that asked

    def answer(reply: Reply) -> None:
        wire.session.handle(Mail("", Failed(reply.ticket, "OutOfMemory", "no room", y.handle.id)))

    wire.answer = answer
    with pytest.raises(
        errors.OutOfMemory, match=r"no room\n\nasked for at\n.*test_session.py.*\n    y = x.exp\(\)  # the line"
    ):
        (y + 1).numpy()


def test_an_error_of_a_name_that_is_not_known_is_a_remote_error(wire: Wire) -> None:
    wire.answer = lambda reply: wire.session.handle(Mail("", Failed(reply.ticket, "FromTheFuture", "text")))
    with pytest.raises(errors.RemoteError, match="text"):
        gt.ones(2).numpy()


def test_losing_the_dispatcher_reaches_who_waits_and_who_comes_later(wire: Wire) -> None:
    x = gt.ones(2)
    wire.answer = lambda reply: wire.session.lose("it went away")
    with pytest.raises(errors.SessionLost, match="it went away"):
        x.numpy()
    with pytest.raises(errors.SessionLost, match="it went away"):
        x.numpy()


def test_a_closed_session_raises_on_ops_and_bears_frees(wire: Wire) -> None:
    x = gt.ones(2)
    wire.session.close()
    with pytest.raises(errors.SessionLost, match="closed"):
        wire.session.due()
    with pytest.raises(errors.SessionLost):
        x.handle.numpy()
    del x


def test_a_wrong_argument_raises_before_anything_is_written(wire: Wire) -> None:
    x, y = gt.ones(2, 3), gt.ones(2, 3)
    before = len(wire.session.code)
    with pytest.raises(ValueError, match="cannot matmul"):
        x @ y
    assert len(wire.session.code) == before and not wire.session.replies


def test_loaded_bytes_are_placed_and_named(wire: Wire) -> None:
    x = gt.from_numpy(np.array([1, 2, 3], "f4"))
    wire.session.flush()
    assert wire.placed == [np.array([1, 2, 3], "f4").tobytes()]
    assert wire.code[-1][1:] == (x.handle.id, 1, 0, 0)


def test_where_no_memory_is_shared_bytes_wait_until_a_worker_wants_them() -> None:
    wire = Wire(shares=False)
    wire.session = Session(wire, "c")
    before, HERE.scope = HERE.scope, Scope(wire.session)
    try:
        x = gt.from_numpy(np.array([1, 2], "f4"))
        wire.session.flush()
        assert wire.code[-1][1:] == (x.handle.id, -1, 0, 0) and not wire.posted
        wire.session.handle(Mail("", Upload("c", x.handle.id, (8, 2), (0, 1))))
        assert [w for w, _, _ in wire.posted] == [0, 1]
        assert bytes(wire.posted[0][2][0]) == np.array([1, 2], "f4").tobytes()
        assert not wire.session.uploads
    finally:
        HERE.scope = before
        wire.session.close()


def test_a_loaded_array_is_a_copy(wire: Wire) -> None:
    array = np.array([1, 2, 3], "f4")
    x = gt.from_numpy(array)
    array[:] = 0
    assert wire.placed == [np.array([1, 2, 3], "f4").tobytes()] and x.shape == (3,)


def test_a_question_goes_behind_all_that_was_written(wire: Wire) -> None:
    x = gt.ones(2)
    wire.answer = lambda reply: wire.session.handle(Mail("", Answer(reply.ticket, 42)))
    assert wire.session.ask("stats") == 42 and x.shape == (2,)
    assert [type(m) for m in wire.sent] == [Batch, Ask]


def test_a_question_without_an_answer_raises(wire: Wire) -> None:
    with pytest.raises(errors.GTError, match="no answer about stats within 0.1 s"):
        wire.session.ask("stats", timeout=0.1)


def test_the_line_of_an_op_costs_no_memory_that_grows(wire: Wire) -> None:
    size = len(wire.session.asked_code)
    x = gt.ones(2)
    for _ in range(1000):
        x = x + 1
    assert len(wire.session.asked_code) == size


def test_when_a_worker_is_lost_reads_under_way_are_asked_again_and_late_pieces_do_not_count(wire: Wire) -> None:
    x = gt.ones(2, 2)
    half = np.array([1, 2], "f4").tobytes()

    def answer(reply: Reply) -> None:
        old = wire.sent[-1].gets[0][0]
        piece = Value(old, (8, 1, 2), (0, 0), (2, 2), 2)
        wire.session.handle(Mail("w0", piece, (half,)))
        wire.session.handle(Mail("", Peers((), "worker w0 was lost")))
        ticket, id, spec = wire.sent[-1].gets[0]
        assert ticket != old and id == x.handle.id
        wire.session.handle(Mail("w0", piece, (half,)))
        wire.session.handle(Mail("w1", Value(ticket, spec, (0, 0), (2, 2), 1), (half + half,)))

    wire.answer = answer
    assert x.tolist() == [[1, 2], [1, 2]] and not wire.session.replies


def test_a_reader_that_waits_for_a_worker_is_told_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The workers that a script starts itself need no `gt-worker`."""
    monkeypatch.setenv("GT_WAIT", "30")
    never = SimpleNamespace(wait=lambda reply, seconds: None)
    session = SimpleNamespace(notice=STARTING, remedy=STARTED, workers=(), link=never)
    with pytest.raises(errors.GTError, match=r"waited 30 s \(GT_WAIT\).*: the workers that this script started still load"):
        await_answer(session, SimpleNamespace(done=False), "this read", None)  # type: ignore[arg-type]
    assert f"this read waits for a worker, and none has joined the dispatcher yet: {STARTED}" in capsys.readouterr().err


def test_a_read_whose_last_worker_is_lost_while_it_waits_waits_as_one_without_a_worker(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GT_WAIT", "30")
    wire.answer = lambda reply: setattr(wire.session, "workers", ())
    with pytest.raises(errors.GTError, match=r"this read waited 30 s \(GT_WAIT\)"):
        gt.ones(2).tolist()
