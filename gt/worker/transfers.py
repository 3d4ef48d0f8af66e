"""Transfers of bytes between clients and a worker's tensors: loads, uploads and reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt.errors import OutOfMemory, ProtocolError
from gt.ops import Kind
from gt.ops.table import spec_in
from gt.spec import Spec
from gt.transport.messages import Failed, Fetch, Mail, Value
from gt.worker.client_values import Broken, ClientValues, out_of_memory
from gt.worker.collectives.mail_transport import elements
from gt.worker.collectives.ops import box
from gt.worker.engine import Engine
from gt.worker.segments import Memory

INLINE = 4096  # most bytes of a value that are sent inside the message
UPLOADS = 1 << 12  # most uploads of a client that no instruction has loaded yet


def load(engine: Engine, memory: Memory, client: str, values: ClientValues, kind: Kind, place: tuple) -> Any:
    """The bytes at a client's place, or this worker's piece of them."""
    spec, whole, start = kind.outs[0], kind.settings["whole"], kind.settings["start"]
    if place[0] == -1:
        return _take_upload(values, place[1], spec)
    if spec.numel == 0:
        return engine.load(memoryview(b""), spec, True)
    if whole == spec.shape:
        data, copy = memory.load(client, place, spec.nbytes)
        return engine.load(data, spec, copy)
    data, _ = memory.load(client, place, Spec(whole, spec.dtype).nbytes)
    part = box(elements(data, Spec(whole, spec.dtype)), start, spec.shape)
    return engine.load(np.ascontiguousarray(part).data.cast("B"), spec, True)


def keep_upload(
    engine: Engine, values: ClientValues, id: int, spec: Any, frame: Any, room: Callable[[int], None] = lambda nbytes: None
) -> bool:
    """Keep a client's upload until an instruction loads it. Returns whether there was room; if not, the tensor fails and
    carries the reason. `room(nbytes)` raises if there is none."""
    data = memoryview(frame)
    if len(values.arrived) >= UPLOADS:
        raise ProtocolError(f"{len(values.arrived)} uploads wait for an instruction: expected at most {UPLOADS}")
    try:
        if not isinstance(spec, Spec) or data.nbytes != spec.nbytes:
            raise ProtocolError(f"an upload of {data.nbytes} bytes does not fit {spec}")
        room(data.nbytes)
        values.arrived[id] = (spec, engine.load(data, spec, True))
    except OutOfMemory as exceeded:
        values.arrived[id] = (exceeded, None)
    except Exception as wrong:  # an engine may raise anything while it copies bytes; the tensor carries the cause
        full = out_of_memory(wrong)
        values.arrived[id] = (OutOfMemory(str(wrong)) if full else str(wrong), None)
        return full
    return True


def _take_upload(values: ClientValues, id: int, spec: Spec) -> Any:
    """The array of an upload, at the dispatcher's load instruction."""
    came, array = values.arrived.pop(id, (None, None))
    if isinstance(came, OutOfMemory):
        raise came
    if came is not spec:
        raise ProtocolError(f"expected an upload of {spec}, got {came}")
    return array


def answer(engine: Engine, memory: Memory, worker: str, client: str, array: Any, get: Fetch) -> Mail:
    """The answer to a read: its bytes are in the message, in shared memory, or in a frame."""
    if array is None:
        return Mail(client, Failed(get.ticket, "ProtocolError", f"no tensor {get.id} on worker {worker}", get.id))
    if isinstance(array, Broken):
        return Mail(client, Failed(get.ticket, array.error, array.text, array.tensor))
    spec = spec_in(get.spec)
    if not isinstance(spec, Spec) or tuple(array.shape) != spec.shape:
        raise ProtocolError(f"cannot read {spec}: the tensor has shape {tuple(array.shape)}")
    data = engine.store(array, spec)
    if (nbytes := data.nbytes) != spec.nbytes:
        raise ProtocolError(f"cannot read {spec}: the tensor has {nbytes} bytes")
    if nbytes <= INLINE:
        return Mail(client, Value(get.ticket, get.spec, get.start, get.whole, get.pieces, None, bytes(data)))
    place = memory.lend(client, data)
    message = Value(get.ticket, get.spec, get.start, get.whole, get.pieces, place)
    return Mail(client, message, () if place else (data,))
