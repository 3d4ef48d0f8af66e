"""Functions of `torch.cuda`. A script chooses no device here: workers have GPUs or not, and the dispatcher chooses."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, NoReturn

from gt import missing_names
from gt.client.functions import FUNCTIONS, random
from gt.cuda import amp
from gt.errors import OutOfMemoryError

__all__ = ["amp", "current_device", "device", "device_count", "empty_cache", "get_rng_state_all", "is_available"]
__all__ += ["OutOfMemoryError", "get_device_capability", "get_device_name", "get_device_properties", "ipc_collect"]
__all__ += ["max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved", "reset_peak_memory_stats"]
__all__ += ["is_bf16_supported", "is_initialized", "manual_seed", "manual_seed_all", "set_device", "synchronize"]
__all__ += ["init", "initial_seed", "memory_stats", "seed", "seed_all", "set_rng_state_all"]


def is_available() -> bool:
    """False: there is no device for a script to move tensors to."""
    return False


def is_initialized() -> bool:
    return False


def device_count() -> int:
    return 0


def current_device() -> int:
    raise RuntimeError("a GT script has no current CUDA device: the dispatcher chooses where tensors lie")


def set_device(device: Any) -> None:
    """Without effect: the dispatcher chooses."""


@contextmanager
def device(device: Any) -> Any:
    """Without effect: the dispatcher chooses."""
    yield


def manual_seed(seed: int) -> None:
    """`gt.manual_seed`: the same numbers come on every device."""
    random.manual_seed(seed)


manual_seed_all = manual_seed


def get_rng_state_all() -> list[Any]:
    """Empty: random numbers are the session's, whatever device draws them."""
    return []


def set_rng_state_all(new_states: Any) -> None:
    """Without effect: random numbers are the session's (`gt.set_rng_state`)."""


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Empty: memory is the workers', and `gt top` shows it."""
    return {}


def init() -> None:
    """Nothing to begin."""


seed = seed_all = random.seed
initial_seed = random.initial_seed


def synchronize(device: Any = None) -> None:
    """Nothing to wait for: reading a value waits for it."""


def empty_cache() -> None:
    """Nothing to do: memory is the workers'."""


def is_bf16_supported() -> bool:
    return True


def memory_allocated(device: Any = None) -> int:
    """0: memory is the workers', and `gt top` shows it."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Nothing to do: memory is the workers'."""


ipc_collect = empty_cache


def get_device_name(device: Any = None) -> NoReturn:
    raise RuntimeError("a GT script has no CUDA device to ask about: `gt status` and `gt top` show the workers'")


get_device_capability = get_device_properties = get_device_name

for _name in ("FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "LongTensor", "IntTensor", "ShortTensor",
              "CharTensor", "ByteTensor", "BoolTensor"):  # fmt: skip
    globals()[_name] = FUNCTIONS[_name]  # where tensors lie is no part of their type

__getattr__ = missing_names.of(__name__)
