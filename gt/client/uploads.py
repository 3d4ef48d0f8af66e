"""Uploads to workers that share no memory with the client."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ops.table import spec_in
from gt.spec import Spec
from gt.transport.messages import Upload


def send_pieces(session: Any, upload: Upload) -> None:
    """Send each worker its piece of a tensor."""
    spec = spec_in(upload.spec)
    assert isinstance(spec, Spec)
    data = np.frombuffer(session.uploads.pop(upload.id, b""), np.uint8).reshape(*spec.shape, spec.dtype.size)
    boxes = upload.boxes or [((0,) * spec.ndim, spec.shape)] * len(upload.workers)
    for worker, (start, shape) in zip(upload.workers, boxes):
        part = data[tuple(slice(s, s + d) for s, d in zip(start, shape))]
        frame = np.ascontiguousarray(part).reshape(-1).data
        session.link.send_to(worker, Upload(session.name, upload.id, (upload.spec[0], *shape)), (frame,))
