"""Every row on a sample of placements, on four real workers: the numbers are those of one. The cases of
`tests/memory/test_any_layout`, which run in one process there, go through sockets, pipes and torch.distributed here."""

from __future__ import annotations

import os

import pytest
from processes import Processes

EXAMPLES = os.environ.get("TEST_EXAMPLES", "3")  # for each row, the first as simple as can be; a long run asks for more

SAMPLE = """
import os, sys
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import gt
from gt.client.apply import apply
from gt.config import SignalConfig
from gt.spec import Layout, Partial, Shard, Spec
from tests.memory.layouts import grained, layouts, meshes, term
from tests.memory.test_any_layout import ENGINE, SAMPLES, signals
from tests.ops.samples import ROWS, assert_same, several

gt.gpu_workers(4)
gt.debug.get_worker_stats()  # they are there
terms = 0

def laid(array, spec, layout):
    "A tensor of these values that lies so. Terms come of adding up pieces."
    global terms
    mesh, partial = layout.mesh, [d for d, p in enumerate(layout.placements) if isinstance(p, Partial)]
    sizes = [mesh.shape[d] for d in partial]
    stacked = np.empty((*sizes, *spec.shape), array.dtype)
    for at in np.ndindex(*sizes):
        place = [0] * len(mesh.shape)
        for d, i in zip(partial, at):
            place[d] = i
        stacked[at] = term(array, tuple(place), layout)
    axes = iter(range(len(partial)))
    placements = [Shard(next(axes)) if d in partial else Shard(p.axis + len(partial)) if isinstance(p, Shard) else p
                  for d, p in enumerate(layout.placements)]
    gt.register_config("lay", SignalConfig(mesh={f"d{i}": n for i, n in enumerate(mesh.shape)}, placement=placements,
                                           workers=list(mesh.workers)))
    with gt.signal.context("lay"):
        t = gt.from_numpy(stacked)
        t = t if t.dtype == spec.dtype else t.to(spec.dtype)
    if partial:
        over = tuple(range(len(partial)))
        reduce = layout.placements[partial[0]].reduce
        t = t.sum(axis=over) if reduce == "sum" else t.amax(axis=over) if reduce == "max" else t.amin(axis=over)
        terms += "Partial" in repr(t.placement)
        t = t if t.dtype == spec.dtype else t.to(spec.dtype)
    return t

@settings(max_examples=int(sys.argv[1]), deadline=None, suppress_health_check=list(HealthCheck), database=None,
          derandomize=True)
@given(data=st.data())
def check(row, data):
    sample = data.draw(st.sampled_from(SAMPLES[row.name]))
    kind, operands = sample.kind, [grained(o) for o in sample.operands]
    wanted = several(ENGINE.kernel(kind)(*[o.copy() if isinstance(o, np.ndarray) else o for o in operands]))
    common = data.draw(meshes(4))
    signal = data.draw(signals(kind.outs[0].ndim, 4))
    tensors = [
        laid(o, s, data.draw(layouts(s, common, terms=s.dtype.is_signed))) if isinstance(s, Spec) else o
        for o, s in zip(operands, kind.ins)
    ]
    gt.register_config("s", signal or SignalConfig())
    with gt.no_grad(), gt.signal.context("s"):
        found = several(apply(row, tuple(tensors), kind.statics))
    assert_same(kind, [f.numpy() for f in found], wanted, f"{kind}", (1e-4, 1e-4))

for row in ROWS:
    check(row)
stats = gt.debug.get_worker_stats().values()
ways = sum((list(s["collectives"].items()) for s in stats), [])
assert {way for way, _ in ways} == {os.environ["GT_COLLECTIVES"]}, ways
assert not any(s["failures"] or s["dropped"] for s in stats), stats
assert [s["tensors"] for s in stats] == [0] * 4, stats
assert terms > 20, terms
print(len(ROWS), "rows,", sum(n for _, n in ways), "parts of collectives,", terms, "tensors in terms")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way, backend", [("memory", "numpy"), ("gloo", "pytorch")])
def test_any_layout_gives_the_numbers_of_one_worker(processes: Processes, way: str, backend: str) -> None:
    script = processes.script(SAMPLE, EXAMPLES, GT_COLLECTIVES=way, GT_BACKEND=backend, OMP_NUM_THREADS="1")
    assert script.ended(200 if int(EXAMPLES) < 4 else 1200) == 0, script.err[-4000:]
    print(script.out)
