"""A worker's queue and ids, on the NumPy engine, without a socket."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest

from gt.errors import ProtocolError
from gt.program.code import FREE
from gt.spec import bfloat16, float32
from gt.transport.checks import kind_in
from gt.transport.messages import (
    Answer,
    Arrived,
    Ask,
    Batch,
    Begun,
    Done,
    Drop,
    Failed,
    Fetch,
    KindDef,
    Mail,
    Peer,
    Peers,
    Piece,
    Run,
    Skip,
    TraceDef,
    Upload,
    Value,
    Welcome,
)  # fmt: skip
from gt.worker.client_values import Poisoned, failure
from gt.worker.collectives.mail import LOST_HOSTS
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER
from gt.worker.segments import Memory
from gt.worker.state import StateReader
from gt.worker.turns import Turn

F = float32.code
PAIR = (F, 2, 2)
FULL = KindDef(1, "full", ((-3,),), ((2, 2), F))
ADD = KindDef(2, "add", (PAIR, PAIR), ())
EXP = KindDef(3, "exp", (PAIR,), ())
MUL = KindDef(4, "mul", (PAIR, (-3,)), ())
LOAD = KindDef(5, "load", ((-2,), (-2,), (-2,)), ((2, 2), (2, 2), (0, 0), F))
SUM = KindDef(6, "sum", (PAIR,), ((7,), False))  # no such axis
KINDS = (FULL, ADD, EXP, MUL, LOAD)


class Shelf(Memory):
    """Bytes by the number of their segment."""

    def __init__(self, **segments: bytes) -> None:
        self.segments = {int(k[1:]): v for k, v in segments.items()}

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        if place[0] not in self.segments:
            raise ProtocolError("no such segment")
        return memoryview(self.segments[place[0]])[:nbytes], True


@pytest.fixture
def worker() -> Worker:
    return sharing(Shelf(s9=np.arange(4, dtype="f4").tobytes()))


def sharing(memory: Memory) -> Worker:
    made = Worker(make("numpy"), memory)
    made.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    return made


def run(worker: Worker, code: list, *reads: int, client: str = "c", kinds: tuple = KINDS, ack: bool = False) -> list[Mail]:
    gets = tuple(Fetch(100 + id, id, PAIR, (0, 0), (2, 2)) for id in reads)
    return worker.handle(Mail(DISPATCHER, Run(client, 1, kinds, code, gets, ack)))


def value(mail: Mail) -> np.ndarray:
    assert isinstance(mail.message, Value)
    return np.frombuffer(mail.message.data, "f4").reshape(2, 2)


def test_instructions_run_in_order_and_values_go_to_who_asked(worker: Worker) -> None:
    [mail] = run(worker, [(1, 1, 1.0), (2, 2, 1, 1), (3, 3, 2), (4, 4, 3, 2.0)], 4)
    assert mail.peer == "c" and mail.message.ticket == 104
    np.testing.assert_allclose(value(mail), 2 * np.exp(2.0) * np.ones((2, 2)), rtol=1e-6)


def test_each_client_has_ids_and_kinds_of_its_own(worker: Worker) -> None:
    run(worker, [(1, 1, 1.0)], client="a")
    run(worker, [(2, 1, 5.0)], client="b", kinds=(KindDef(2, "full", ((-3,),), ((2, 2), F)),))
    assert value(run(worker, [], 1, client="a", kinds=())[0])[0, 0] == 1
    assert value(run(worker, [], 1, client="b", kinds=())[0])[0, 0] == 5


def test_nothing_is_acknowledged_unless_asked(worker: Worker) -> None:
    assert run(worker, [(1, 1, 1.0)]) == []
    assert run(worker, [(1, 2, 1.0)], ack=True) == [Mail(DISPATCHER, Done("c", 1))]


def test_a_free_forgets_a_tensor(worker: Worker) -> None:
    run(worker, [(1, 1, 1.0), (FREE, 1), (FREE, 77)])
    assert not worker.spaces["c"].table


def test_a_dropped_client_leaves_nothing(worker: Worker) -> None:
    run(worker, [(1, 1, 1.0)], client="a")
    run(worker, [(1, 1, 1.0)], client="b")
    assert worker.handle(Mail(DISPATCHER, Drop("a"))) == []
    assert set(worker.spaces) == {"b"}
    assert worker.stats()["ops"] == {"full": 2}


def test_bytes_of_a_client_are_loaded_from_where_it_placed_them(worker: Worker) -> None:
    [mail] = run(worker, [(5, 1, 9, 0, 0)], 1)
    assert value(mail).tolist() == [[0, 1], [2, 3]]


REDUCE = KindDef(7, "all_reduce", ((F, 2, 2), (-2,)), ((0, 1), "sum"))
BOTH = (Peer(0, "w", "ipc://w", "here"), Peer(1, "peer", "ipc://m", "here"))


def piece(client: str, tag: int, why: str = "") -> Mail:
    """The peer's part in a collective; with a reason, it has failed."""
    return Mail("#1", Piece(1, client, tag, why, "RemoteError" if why else ""), (b"" if why else bytes(16),))


def test_collectives_of_a_client_that_left_are_skipped_unless_another_worker_has_begun_them(worker: Worker) -> None:
    worker.handle(Mail(DISPATCHER, Peers(BOTH)))
    code = [(1, 1, 3.0), *[(7, tag, 1, tag) for tag in (2, 3, 4, 5)]]
    run(worker, code, client="gone", kinds=(FULL, REDUCE))  # it waits in the first
    run(worker, [(1, 1, 1.0), (7, 2, 1, 2)], 2, client="other", kinds=(FULL, REDUCE))
    assert worker.handle(Mail(DISPATCHER, Drop("gone", 9))) == [Mail(DISPATCHER, Begun(9, (((0, 1), 1),)))]
    assert worker.handle(piece("gone", 2)) == []  # the second is not begun before it is known who has begun it
    posts = worker.handle(Mail(DISPATCHER, Skip(9, (((0, 1), 2),))))
    assert [(m.peer, m.message.tag) for m in posts] == [("#1", 3)]
    [mail] = worker.handle(piece("gone", 3, "its client is gone"))  # and the others are skipped
    assert (mail.peer, mail.message.client) == ("#1", "other")
    [mail] = worker.handle(piece("other", 2))
    assert mail.peer == "other" and value(mail)[0, 0] == 1
    assert set(worker.spaces) == {"other"} and not worker.cancellation.gone and not worker.cancellation.limits


def test_a_collective_whose_operand_was_skipped_names_the_departure_as_the_cause(worker: Worker) -> None:
    worker.handle(Mail(DISPATCHER, Peers(BOTH)))
    code = [(1, 1, 3.0), (7, 2, 1, 2), (1, 3, 3.0), (7, 4, 3, 4)]
    run(worker, code, client="gone", kinds=(FULL, REDUCE))  # it waits in the first collective
    worker.handle(Mail(DISPATCHER, Drop("gone", 9)))
    worker.handle(piece("gone", 2))
    [mail] = worker.handle(Mail(DISPATCHER, Skip(9, (((0, 1), 2),))))  # tensor 3, its operand, is not computed any more
    assert mail.message.tag == 4 and mail.message.why.endswith("has no operands: its client has left")


def test_two_clients_of_one_name_that_are_gone_are_told_apart(worker: Worker) -> None:
    worker.handle(Mail(DISPATCHER, Peers(BOTH)))
    run(worker, [(1, 1, 3.0), (7, 2, 1, 2), (7, 3, 1, 3)], client="gone", kinds=(FULL, REDUCE))
    for number in (1, 2):
        worker.handle(Mail(DISPATCHER, Drop("gone", number)))
        run(worker, [(1, 1, 3.0), (7, 4, 1, 4)], client="gone", kinds=(FULL, REDUCE))
    worker.handle(Mail(DISPATCHER, Skip(2, (((0, 1), 3),))))
    assert worker.handle(piece("gone", 2)) == []  # the first of that name is not settled
    [mail] = worker.handle(Mail(DISPATCHER, Skip(1, (((0, 1), 1),))))
    assert (
        mail.message.tag == 4 and worker.executor.collectives_begun[0, 1] == 3
    )  # the second of that name: begun by another worker


def test_nothing_is_kept_of_the_groups_of_workers_that_came_and_went(worker: Worker) -> None:
    worker.handle(Mail(DISPATCHER, Welcome("w", 0)))
    for other in range(1, 400):
        peer = Peer(other, f"w{other}", f"ipc://w{other}", f"host{other}")
        worker.handle(Mail(DISPATCHER, Peers((BOTH[0], peer))))
        reduce = KindDef(7, "all_reduce", ((F, 2, 2), (-2,)), ((0, other), "sum"))
        run(worker, [(1, 1, 3.0), (7, 2, 1, 2)], client=f"c{other}", kinds=(FULL, reduce))
        worker.handle(Mail(DISPATCHER, Peers((BOTH[0],), f"worker w{other} was lost")))
        [told] = worker.handle(Mail(DISPATCHER, Drop(f"c{other}", other)))
        assert told == Mail(DISPATCHER, Begun(other, ()))
    assert not worker.executor.collectives_begun and not worker.spaces and not worker.cancellation.gone
    assert len(worker.collectives.hosts) == 1 + LOST_HOSTS


def test_a_worker_that_is_not_told_in_time_how_far_others_are_takes_part(worker: Worker) -> None:
    worker.handle(Mail(DISPATCHER, Peers(BOTH)))
    run(worker, [(1, 1, 3.0), (7, 2, 1, 2), (7, 3, 1, 3)], client="gone", kinds=(FULL, REDUCE))
    worker.handle(Mail(DISPATCHER, Drop("gone", 1)))
    worker.handle(piece("gone", 2))
    assert worker.parked is not None
    worker.parked.stopped.wait.give_up("too late")
    [mail] = worker.resume()
    assert (mail.peer, mail.message.tag) == ("#1", 3)


def test_a_tensor_that_was_freed_is_no_operand_though_its_spec_is_kept_for_a_while(worker: Worker) -> None:
    worker.handle(Mail(DISPATCHER, Peers(BOTH)))
    code = [(1, 1, 3.0), (FREE, 1), (3, 2, 1), (7, 3, 1, 3)]
    [post, told, failed] = run(worker, code, 2, kinds=(*KINDS, REDUCE)) + worker.handle(piece("c", 3, "nothing here either"))
    assert told == Mail(DISPATCHER, Done("c", 0, (2, 3))), "with several workers, the dispatcher counts the tensors there"
    assert post.peer == "#1" and "[None]" in post.message.why, "it takes part, with nothing to give"
    assert isinstance(failed.message, Failed)


def test_specs_of_tensors_that_were_freed_are_forgotten_in_time(worker: Worker) -> None:
    run(worker, [(1, 1, 3.0), *[ins for id in range(2, 6000) for ins in ((1, id, 1.0), (FREE, id))]])
    values = worker.spaces["c"]
    assert set(values.table) == {1} and len(values.specs) < 1100 and values.specs[1] is not None
    assert value(run(worker, [(3, 2, 1)], 2)[0]).shape == (2, 2)


def test_executed_instructions_are_reported_with_their_client(worker: Worker) -> None:
    run(worker, [(1, 1, 3.0)], client="hers")
    reader, seen, values = StateReader(worker, float, lambda: (0.0, 0.0, 0)), [], worker.spaces["hers"]
    form, kernel, ready = values.kinds[3]
    values.kinds[3] = (form, lambda a: (seen.append(reader()), kernel(a))[1], ready)
    run(worker, [(3, 2, 1)], client="hers", kinds=())
    assert [(state.current, state.client) for state in seen] == [(ready.kind.row.name, "hers")]
    assert (reader().current, reader().client) == ("", "")


def test_an_upload_is_kept_and_said_to_have_arrived(worker: Worker) -> None:
    data = np.full((2, 2), 7, "f4").tobytes()
    assert worker.handle(Mail("c", Upload("c", 1, PAIR), (data,))) == [Mail(DISPATCHER, Arrived("c", 1))]
    assert value(run(worker, [(5, 1, -1, 1, 0)], 1)[0]).tolist() == [[7, 7], [7, 7]]
    assert not worker.spaces["c"].arrived


def test_an_upload_of_another_spec_than_was_asked_for_is_no_tensor(worker: Worker) -> None:
    run(worker, [(1, 1, 3.0)])
    worker.handle(Mail("c", Upload("c", 1, (F, 1)), (bytes(4),)))
    assert value(run(worker, [], 1)[0]).tolist() == [[3, 3], [3, 3]]  # it writes over nothing
    [mail] = run(worker, [(5, 2, -1, 1, 0)], 2)
    assert isinstance(mail.message, Failed) and "expected an upload of Spec((2, 2), gt.float32), got " in mail.message.text


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_upload_of_the_wrong_size_is_counted_and_an_error_of_its_tensor(worker: Worker, size: int) -> None:
    assert worker.handle(Mail("c", Upload("c", 1, PAIR), (bytes(size),))) == [Mail(DISPATCHER, Arrived("c", 1))]
    assert worker.dropped == 1 and not worker.stats()["tensors"]
    [mail] = run(worker, [(5, 1, -1, 1, 0)], 1)
    assert isinstance(mail.message, Failed) and f"an upload of {size} bytes" in mail.message.text


def test_uploads_of_unknown_clients_are_freed_on_request_of_the_dispatcher(worker: Worker) -> None:
    for id in (1, 2):
        [arrived] = worker.handle(Mail("nobody", Upload("nobody", id, PAIR), (bytes(16),)))
        assert arrived == Mail(DISPATCHER, Arrived("nobody", id))
    for _ in range(2):  # one for each that arrived: both may wait here before the first is carried out
        worker.leaving(Drop("nobody"))
    for _ in range(2):
        assert worker.handle(Mail(DISPATCHER, Drop("nobody"))) == []
    assert "nobody" not in worker.spaces and not worker.cancellation.gone and worker.dropped == 0


def test_an_upload_in_another_client_s_name_is_dropped(worker: Worker) -> None:
    assert worker.handle(Mail("thief", Upload("c", 1, PAIR), (bytes(16),))) == []
    assert worker.dropped == 1


def test_a_failed_kernel_marks_its_tensor_and_all_that_is_made_of_it(worker: Worker) -> None:
    code = [(1, 1, 1.0), (6, 2, 1), (3, 3, 2), (2, 4, 3, 1), (2, 5, 1, 1)]
    mails = run(worker, code, 4, 5, kinds=(*KINDS, SUM))
    assert isinstance(mails[0].message, Failed) and mails[0].message.tensor == 2
    assert mails[0].message.error == "RemoteIndexError" and "sum(float32[2, 2])" in mails[0].message.text
    assert "w0" in mails[0].message.text and "axis 7" in mails[0].message.text
    assert value(mails[1])[0, 0] == 2


def test_no_room_is_an_error_of_that_tensor_only(worker: Worker) -> None:
    huge = KindDef(7, "full", ((-3,),), ((1 << 24, 1 << 24), F))
    mails = run(worker, [(7, 1, 1.0), (1, 2, 1.0)], 1, 2, kinds=(*KINDS, huge))
    assert mails[0].message.error == "OutOfMemory"
    assert value(mails[1])[0, 0] == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError(
            "[enforce fail at CPUAllocator.cpp:64] DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 3.64 TiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Storage size calculation overflowed with sizes=[4611686018427387904]"),
        ValueError("array is too big; `arr.size * arr.dtype.itemsize` is larger than the maximum possible size."),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=lambda error: str(error)[:50],
)
def test_every_allocator_s_words_for_no_room_are_known(error: Exception) -> None:
    assert failure("full", error, 1).error == "OutOfMemory"


def test_other_errors_of_kernels_are_not_taken_for_a_lack_of_memory() -> None:
    for error in (RuntimeError("expected scalar type Float"), ValueError("axis 7 is out of bounds"), OSError("Broken pipe")):
        assert failure("full", error, 1).error == "RemoteError"


def test_a_read_of_an_unknown_tensor_fails(worker: Worker) -> None:
    [mail] = run(worker, [], 1)
    assert isinstance(mail.message, Failed) and mail.message.ticket == 101


def test_messages_of_clients_are_not_taken_for_the_dispatcher_s(worker: Worker) -> None:
    for message in (Run("c", 1, (), []), Drop("c"), Ask(1, "stats"), Welcome("w9", 9), Batch(1, (), []), Done("c", 1)):
        assert worker.handle(Mail("c", message)) == []
    assert worker.dropped == 6 and worker.name == "w0"


def test_stats_count_ops_by_name_over_all_clients(worker: Worker) -> None:
    run(worker, [(1, 1, 1.0), (2, 2, 1, 1), (2, 3, 1, 1), (FREE, 3)], client="a")
    run(worker, [(1, 1, 1.0)], client="b")
    [mail] = worker.handle(Mail(DISPATCHER, Ask(4, "stats", ("a", None))))
    assert mail == Mail(DISPATCHER, Answer(4, mail.message.value))
    stats = mail.message.value
    assert stats["ops"] == {"full": 2, "add": 2} and stats["instructions"] == 4
    assert (stats["engine"], stats["device"], stats["clients"], stats["tensors"]) == ("numpy", "cpu", 2, 3)
    [mail] = worker.handle(Mail(DISPATCHER, Ask(5, "stats", ("b", ["b"]))))
    own = mail.message.value
    assert own["ops"] == {"full": 1} and own["clients"] == 1 and set(own["shares"]) == {"b"}


def test_a_kernel_that_spoils_the_device_ends_the_worker(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*operands: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr(worker.engine, "kernel", lambda kind: fails)
    monkeypatch.setattr(worker.engine, "poisoned", lambda error: "CUDA error" in str(error))
    told = "a kernel failed and left cpu unusable: CUDA error: an illegal memory access was encountered$"
    with pytest.raises(Poisoned, match=told):
        run(worker, [(1, 1, 1.0)])


def test_bfloat16_bytes_come_and_go_as_16_bits(worker: Worker) -> None:
    spec = (bfloat16.code, 3)
    bits = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)  # 1, -2, infinity
    worker.handle(Mail("c", Upload("c", 1, spec), (bits.tobytes(),)))
    load = KindDef(9, "load", ((-2,), (-2,), (-2,)), ((3,), (3,), (0,), bfloat16.code))
    [mail] = worker.handle(Mail(DISPATCHER, Run("c", 1, (load,), [(9, 1, -1, 1, 0)], (Fetch(1, 1, spec, (0,), (3,)),))))
    assert np.frombuffer(mail.message.data, np.uint16).tolist() == bits.tolist()


def test_a_run_is_left_when_its_turn_is_over_and_gone_on_with() -> None:
    worker, now, others = Worker(make("numpy")), [0.0], [True]
    worker.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    worker.executor.turn = Turn(lambda: now[0], lambda: others[0])
    worker.executor.turn.begin(now[0], several=True)
    big = (F, 256, 256)
    kinds = (FULL, EXP, KindDef(7, "full", ((-3,),), ((256, 256), F)), KindDef(8, "mul", (big, (-3,)), ()))
    code = [(7, 1, 1.0), *[(8, i + 1, i, 2.0) for i in range(1, 5)], (1, 9, 0.0), (3, 10, 9)]
    kernel = worker.engine.kernel

    def slow(kind: Any) -> Any:
        def call(*operands: Any) -> Any:
            now[0] += 0.003
            return run_kernel(*operands)

        run_kernel = kernel(kind)
        return call

    worker.engine.kernel = slow
    assert run(worker, code, 10, kinds=kinds) == [] and worker.unfinished("c")
    worker.executor.turn.begin(now[0], several=True)
    assert run(worker, [(1, 1, 3.0)], 1, client="d", kinds=(FULL,))[0].message.ticket == 101, "another client is served"
    turns = 0
    while worker.unfinished("c"):
        worker.executor.turn.begin(now[0], several=True)
        out = worker.go_on("c")
        turns += 1
    assert turns >= 3 and value(out[0]).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert worker.spaces["c"].table[5][0, 0] == 16.0, "each instruction was executed once"
    others[0] = False
    worker.executor.turn.begin(now[0], several=True)
    assert len(run(worker, [*code, *[(FREE, i) for i in (1, 2, 3, 4, 5, 9)]], 10, kinds=())) == 1, "alone, it goes to its end"


def test_a_kernel_with_a_result_of_another_shape_than_its_kind_s_fails(worker: Worker) -> None:
    """An axis below zero means one thing to the rule of shapes and another to the kernel; the next kernel believes the rule."""
    least = KindDef(7, "argmin", (PAIR,), ((-1,), False))
    run(worker, [(1, 1, 3.0), (7, 2, 1)], kinds=(*KINDS, least))
    assert "expected a result of shape (2, 2), got (2,)" in worker.spaces["c"].table[2].text


STARTS = [
    (0, True),
    (1, True),
    (2, False),
    (-1, False),
    (1 << 40, False),
    (0.5, False),
    (True, False),
]  # True is a mask to NumPy


@pytest.mark.parametrize(("start", "fits"), STARTS)
def test_a_slice_that_begins_outside_of_its_tensor_is_refused(worker: Worker, start: float, fits: bool) -> None:
    part = KindDef(7, "slice", (PAIR, (-2,), (-2,)), (((1, 1), (2, 1)),))
    trace = TraceDef(9, 1, [(7, 2, 1, 0, 0)], (2,), (((0, 3),),))
    code = [(1, 1, 3.0), (7, 2, 1, 0, 0), (7, 3, 1, start, 0), (9, 4, 1, start)]
    worker.handle(Mail(DISPATCHER, Run("c", 1, (*KINDS, part), code, traces=(trace,))))
    table = worker.spaces["c"].table
    assert table[2].shape == (1, 2) and [hasattr(table[id], "shape") for id in (3, 4)] == [fits, fits]


def test_a_slice_longer_than_its_axis_is_no_kind() -> None:
    for take in (((3, 1), (2, 1)), ((2, 2), (2, 1)), ((2, 0), (2, 1)), ((1, 1),)):
        with pytest.raises(ProtocolError, match="cannot slice"):
            kind_in(KindDef(7, "slice", (PAIR, (-2,), (-2,)), (take,)))
