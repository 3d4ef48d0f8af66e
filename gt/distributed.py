"""`torch.distributed` for scripts: a GT script is one process, rank 0 of 1, and signals spread its work over workers.

Collectives of a group of one return their input. Calls that need a second rank are refused."""

from __future__ import annotations

from typing import Any, NoReturn

from gt import missing_names
from gt.client.autograd import Tensor


class ReduceOp:
    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR = "sum", "avg", "product", "min", "max", "band", "bor", "bxor"


class _Done:
    """The handle of a collective that is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class _State:
    """Whether the script called `init_process_group`."""

    initialized = False


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return _State.initialized


def init_process_group(
    backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1, *args: Any,
    **kwargs: Any,
) -> None:  # fmt: skip
    """Rank 0 of 1. A larger world is refused: one script drives all workers (docs/sharding.md)."""
    if world_size > 1 or rank > 0:
        raise RuntimeError(
            f"rank {rank} of {world_size}: a GT script is one process that uses all workers. Start it once, "
            "without torchrun, and shard with signals (docs/sharding.md)"
        )
    if _State.initialized:
        raise ValueError("init_process_group was called before: call destroy_process_group first")
    _State.initialized = True


def destroy_process_group(group: Any = None) -> None:
    _State.initialized = False


def get_rank(group: Any = None) -> int:
    return 0


def get_world_size(group: Any = None) -> int:
    return 1


def get_backend(group: Any = None) -> str:
    return "gt"


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    return _Done() if async_op else None


def _only(rank: int | None, what: str) -> None:
    if rank not in (0, None):
        raise ValueError(f"{what} names rank {rank}: a GT script is rank 0 of 1")


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    return _Done() if async_op else None


def reduce(tensor: Tensor, dst: int = 0, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    _only(dst, "reduce")
    return _Done() if async_op else None


def broadcast(tensor: Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> Any:
    _only(src, "broadcast")
    return _Done() if async_op else None


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Any:
    if len(tensor_list) != 1:
        raise ValueError(f"all_gather: expected a tensor_list of 1, as a GT script is rank 0 of 1, got {len(tensor_list)}")
    tensor_list[0].copy_(tensor)
    return _Done() if async_op else None


def all_gather_into_tensor(output: Tensor, input: Tensor, group: Any = None, async_op: bool = False) -> Any:
    output.copy_(input.reshape(output.shape))
    return _Done() if async_op else None


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    output.copy_(input.reshape(output.shape))
    return _Done() if async_op else None


def all_gather_object(object_list: list, obj: Any, group: Any = None) -> None:
    if len(object_list) != 1:
        raise ValueError(f"all_gather_object fills {len(object_list)} places: a GT script is rank 0 of 1")
    object_list[0] = obj


def broadcast_object_list(object_list: list, src: int = 0, group: Any = None, device: Any = None) -> None:
    _only(src, "broadcast_object_list")


def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> str:
    if ranks is not None and list(ranks) != [0]:
        raise ValueError(f"a group of ranks {list(ranks)}: a GT script is rank 0 of 1")
    return "WORLD"


def send(tensor: Tensor, dst: int | None = None, *args: Any, **kwargs: Any) -> NoReturn:
    raise ValueError("send and recv need a second rank: a GT script is rank 0 of 1, and the dispatcher moves tensors")


recv = isend = irecv = send


class group:
    WORLD = "WORLD"


__getattr__ = missing_names.of(__name__)
