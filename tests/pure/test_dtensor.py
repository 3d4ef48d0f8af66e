"""PyTorch's DTensor as an oracle: if it has a result for an op on these placements, the planner's is the same."""

from __future__ import annotations

from typing import Any

import pytest

from gt.dispatcher.plan import choose
from gt.ops import TABLE, infer
from gt.spec import REPLICATE, Layout, Mesh, Partial, Placement, Shard, Spec, float32

torch = pytest.importorskip("torch")
N = 2
MESH = Mesh((N,), (0, 1))
S0, S1, R, P = Shard(0), Shard(1), REPLICATE, Partial()
X, W, V = Spec((4, 6), float32), Spec((6, 8), float32), Spec((6,), float32)
AXIS = {"axis": (0,), "keepdims": False}


@pytest.fixture(scope="module")
def mesh() -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=N, store=FakeStore())
    yield init_device_mesh("cpu", (N,))
    dist.destroy_process_group()


# op, inputs, placements, statics, the same in PyTorch
CASES: list[tuple[str, tuple, tuple, dict, Any]] = [
    ("matmul", (X, W), (S0, R), {}, lambda a, b: a @ b),
    ("matmul", (X, W), (R, S1), {}, lambda a, b: a @ b),
    ("matmul", (X, W), (S1, S0), {}, lambda a, b: a @ b),
    ("matmul", (X, W), (R, R), {}, lambda a, b: a @ b),
    ("matmul", (X, W), (P, R), {}, lambda a, b: a @ b),
    ("add", (X, X), (S0, S0), {}, lambda a, b: a + b),
    ("add", (X, X), (S1, S1), {}, lambda a, b: a + b),
    ("add", (X, X), (P, P), {}, lambda a, b: a + b),
    ("add", (X, V), (S1, S0), {}, lambda a, b: a + b),
    ("add", (X, V), (S0, R), {}, lambda a, b: a + b),
    ("mul", (X, X), (S0, R), {}, lambda a, b: a * b),
    ("mul", (X, X), (S0, S0), {}, lambda a, b: a * b),
    ("relu", (X,), (S0,), {}, lambda a: torch.relu(a)),
    ("exp", (X,), (S1,), {}, lambda a: torch.exp(a)),
    ("tanh", (X,), (P,), {}, lambda a: torch.tanh(a)),
    ("neg", (X,), (S0,), {}, lambda a: -a),
    ("sum", (X,), (S0,), AXIS, lambda a: a.sum(0)),
    ("sum", (X,), (S1,), AXIS, lambda a: a.sum(0)),
    ("sum", (X,), (P,), AXIS, lambda a: a.sum(0)),
    ("amax", (X,), (S1,), AXIS, lambda a: a.amax(0)),
    ("amax", (X,), (S0,), AXIS, lambda a: a.amax(0)),
    ("mean", (X,), (S0,), AXIS, lambda a: a.mean(0)),
    ("mean", (X,), (S1,), AXIS, lambda a: a.mean(0)),
    ("softmax", (X,), (S0,), {"axis": 1}, lambda a: a.softmax(1)),
    ("softmax", (X,), (S1,), {"axis": 1}, lambda a: a.softmax(1)),
    ("cat", (X, X), (S1, S1), {"axis": 0}, lambda a, b: torch.cat([a, b], 0)),
    ("permute", (X,), (S0,), {"axes": (1, 0)}, lambda a: a.permute(1, 0)),
    ("permute", (X,), (P,), {"axes": (1, 0)}, lambda a: a.permute(1, 0)),
    ("reshape", (X,), (S0,), {"shape": (4, 2, 3)}, lambda a: a.reshape(4, 2, 3)),
]

# The differences: ours, theirs, and the reason.
DIFFERENT: dict[tuple[str, tuple], tuple[Placement, str, str]] = {
    ("mean", (S0,)): (P, "Partial(avg)", "each term is divided by the whole's count, so that uneven pieces add up"),
    ("softmax", (S1,)): (S0, "Replicate()", "to cut the other axis moves fewer bytes than to gather"),
}


def theirs(mesh: Any, specs: tuple, placements: tuple, function: Any) -> str:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Partial as TPartial
    from torch.distributed.tensor import Replicate as TReplicate
    from torch.distributed.tensor import Shard as TShard

    written = {"Shard": lambda p: TShard(p.axis), "Replicate": lambda p: TReplicate(), "Partial": lambda p: TPartial(p.reduce)}
    given = []
    for s, p in zip(specs, placements):
        shape = list(s.shape)
        if isinstance(p, Shard):
            shape[p.axis] //= N
        local = torch.ones(shape)
        made = written[type(p).__name__](p)
        given.append(
            DTensor.from_local(local, mesh, [made], run_check=False, shape=s.shape, stride=torch.ones(s.shape).stride())
        )
    (out,) = function(*given).placements
    if out.is_shard():
        return f"Shard({out.dim})"
    return "Replicate()" if out.is_replicate() else f"Partial({out.reduce_op})"


def written(p: Placement) -> str:
    return f"Partial({p.reduce})" if isinstance(p, Partial) else repr(p)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{'-'.join(map(repr, c[2]))}")
def test_the_planner_s_outcome_is_dtensor_s(mesh: Any, case: tuple) -> None:
    name, specs, placements, statics, function = case
    row = TABLE[name]
    kind = infer(row, specs, tuple(statics[n] for n in row.statics))
    plan = choose(kind, tuple(Layout(MESH, (p,)) for p in placements))
    ours = written(plan.layout.placements[0])
    want = theirs(mesh, specs, placements, function)
    if (name, placements) in DIFFERENT:
        expected, other, _ = DIFFERENT[name, placements]
        assert (ours, want) == (written(expected), other), "the list of differences is out of date"
    else:
        assert ours == want
