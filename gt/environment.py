"""Every environment variable of GT: its type, its default, its readers and its effect. Nothing else reads a `GT_` variable.

A variable that is empty counts as not set. A value that cannot be used is an error that names the values that can.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, TypeVar

from gt.errors import ConfigError

T = TypeVar("T")
D = TypeVar("D", float, None)
CLIENT, SERVER, WORKER = "client", "server", "worker"
TRUTHS = {"0": False, "1": True, "true": True, "false": False, "yes": True, "no": False}
PREFIX = "GT_"


@dataclass(frozen=True)
class EnvironmentVariable(Generic[T]):
    """`VERBOSE.value()` reads the environment at each call."""

    name: str
    default: T
    readers: tuple[str, ...]  # the processes whose behaviour it decides
    doc: str
    parse: Callable[[str], T]  # raises ValueError where it cannot
    accepts: str  # the values that `parse` takes, in words

    def text(self) -> str:
        """The value as it was set, without spaces around it; "" where it is not set."""
        return os.environ.get(self.name, "").strip()

    def value(self) -> T:
        text = self.text()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise ConfigError(f"{self.name}={text!r}: expected {self.accepts}", self.name) from None

    def row(self) -> str:
        """Its row in the table of docs/environment.md."""
        default = f"{self.default:g}" if isinstance(self.default, int | float) else self.default or "not set"
        return f"| `{self.name}` | {self.doc} | {default} | {', '.join(self.readers)} |"


VARIABLES: dict[str, EnvironmentVariable] = {}


def _declared(variable: EnvironmentVariable[T]) -> EnvironmentVariable[T]:
    VARIABLES[variable.name] = variable
    return variable


def _truth(text: str) -> bool:
    try:
        return TRUTHS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def flag(name: str, readers: Iterable[str], doc: str, default: bool = False) -> EnvironmentVariable[bool]:
    return _declared(EnvironmentVariable(name, default, tuple(readers), doc, _truth, f"one of {', '.join(TRUTHS)}"))


def switch(name: str, readers: Iterable[str], doc: str) -> EnvironmentVariable[bool | None]:
    """A flag whose default is decided where it is read."""
    return _declared(EnvironmentVariable(name, None, tuple(readers), doc, _truth, f"one of {', '.join(TRUTHS)}"))


def string(name: str, readers: Iterable[str], doc: str, default: str = "", accepts: str = "a text") -> EnvironmentVariable[str]:
    return _declared(EnvironmentVariable(name, default, tuple(readers), doc, str, accepts))


def choice(name: str, readers: Iterable[str], doc: str, choices: tuple[str, ...]) -> EnvironmentVariable[str]:
    """One of some words, the first of which is the default."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return _declared(EnvironmentVariable(name, choices[0], tuple(readers), doc, parse, f"one of {', '.join(choices)}"))


def whole(name: str, readers: Iterable[str], doc: str, default: int, least: int = 0) -> EnvironmentVariable[int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError(text)
        return int(text)

    return _declared(EnvironmentVariable(name, default, tuple(readers), doc, parse, f"a whole number from {least} up"))


def seconds(name: str, readers: Iterable[str], doc: str, default: D) -> EnvironmentVariable[float | D]:
    """A length of time. The default may be None, where there is no limit."""

    def parse(text: str) -> float:
        found = float(text)
        if not 0 <= found < float("inf"):
            raise ValueError(text)
        return found

    return _declared(EnvironmentVariable(name, default, tuple(readers), doc, parse, "a number of seconds from 0 up"))


def number(
    name: str, readers: Iterable[str], doc: str, default: float, least: float, most: float
) -> EnvironmentVariable[float]:
    def parse(text: str) -> float:
        found = float(text)
        if not least <= found <= most:
            raise ValueError(text)
        return found

    return _declared(EnvironmentVariable(name, default, tuple(readers), doc, parse, f"a number from {least:g} to {most:g}"))


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE = "a number of bytes, such as 500MB or 20GB"


def bytes_in(text: str) -> int:
    """`20GB` in bytes; units are powers of 1024. Raises ValueError where it is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B?)", text.strip(), re.IGNORECASE)
    unit = found[2].upper().rstrip("B") if found else None
    if found is None or unit not in UNITS or not 0 < int(float(found[1]) * UNITS[unit]) < 1 << 62:
        raise ValueError(f"{text!r} is no size: expected {SIZE}")
    return int(float(found[1]) * UNITS[unit])


def size(name: str, readers: Iterable[str], doc: str) -> EnvironmentVariable[int]:
    """Bytes of memory; 0, where it is not set, is no limit."""
    return _declared(EnvironmentVariable(name, 0, tuple(readers), doc, bytes_in, SIZE))


ALL = (CLIENT, SERVER, WORKER)

BACKEND = string("GT_BACKEND", [WORKER], "the engine of workers, such as `pytorch` or `numpy`, or a `module:Class`")
FALLBACK_BACKENDS = string("GT_FALLBACK_BACKENDS", [WORKER], "engines to use, in this order, where that one is not available")
CONFIG = string("GT_CONFIG", [CLIENT, WORKER], "path of a YAML configuration: signals, backends")
KEY = string("GT_KEY", ALL, "the users' key of a server that other hosts or users can reach")
WORKER_KEY = string("GT_WORKER_KEY", [SERVER, WORKER], "the key that a worker needs besides; a server makes one up without it")
DASHBOARD_KEY = string("GT_DASHBOARD_KEY", [SERVER], "the key of the dashboard's pages; a server makes one up without it")
SALT = string("GT_SALT", ALL, "a salt of the server's own for its keys, no secret; the same wherever they are used")
POOL = string("GT_POOL", [CLIENT], "the pool that `gt.connect()` and `gt status` use where none is named")
POOLS = string("GT_POOLS", ALL, "the folder of the files of this user's pools; by default `~/.local/state/gt/pools`")
DRAIN = seconds(
    "GT_DRAIN", [WORKER], "seconds a worker has, from SIGTERM on, to finish, pass on its tensors and leave; `0` for none", 20.0
)
MAX_CLIENTS = whole("GT_MAX_CLIENTS", [SERVER], "clients that a dispatcher serves at a time; others are refused", 1000, least=1)
INSTRUCTION_LOG = string("GT_INSTRUCTION_LOG", [SERVER], "path of the instruction log")
INSTRUCTION_LOG_SIZE = whole(
    "GT_INSTRUCTION_LOG_SIZE", [SERVER], "megabytes after which a new log is begun; four older ones are kept", 256, least=1
)  # fmt: skip
AUTO_SHARD = flag("GT_AUTO_SHARD", [CLIENT, SERVER], "`1` spreads new tensors over all workers")
AUTO_COMPILE = flag("GT_AUTO_COMPILE", [WORKER], "`1` compiles every step that repeats with torch.compile")
CUDA_GRAPHS = flag("GT_CUDA_GRAPHS", [WORKER], "`0` runs steps that repeat without CUDA graphs", default=True)
CHAINS = flag("GT_CHAINS", [WORKER], "`0` computes every elementwise op of a CUDA graph by a kernel of its own", default=True)
SPLIT_PRODUCTS = flag(
    "GT_SPLIT_PRODUCTS",
    [WORKER],
    "`0` leaves float32 products and attention of CUDA graphs to cuBLAS and PyTorch, without tensor cores",
    default=True,
)
CHECK_COMPILED = flag("GT_CHECK_COMPILED", [WORKER], "`1` compares a compiled step's results with the plain ones")
TRACE = flag("GT_TRACE", [CLIENT], "`0` sends every op by itself, also in loops that repeat", default=True)
EARLY = flag("GT_EARLY", [CLIENT], "`0` sends a repeated step only when Python has issued it", default=True)
LOCAL_ANSWERS = flag(
    "GT_LOCAL_ANSWERS",
    [CLIENT],
    "`0` has a worker answer also the small questions that this process could answer itself",
    default=True,
)
LANES = flag(
    "GT_LANES",
    [CLIENT, WORKER],
    "`0` sends all messages by ZMQ, also where both processes are of one host and user",
    default=True,
)
SPIN = seconds(
    "GT_SPIN",
    [CLIENT, SERVER, WORKER],
    "seconds for which a process polls for messages before it sleeps, where its last wait was no longer; `0` never; "
    "if not set, 0.0003, and 0.001 behind a read, where there is more than one core",
    None,
)
ONE_PROCESS = switch(
    "GT_ONE_PROCESS",
    [CLIENT],
    "whether a dispatcher that a script starts by itself, with one worker, shares the worker's process; "
    "if not set, where there are at most two cores",
)
NATIVE = flag("GT_NATIVE", ALL, "`0` does without the parts in C", default=True)
WORKER_BATCH_SIZE = whole("GT_WORKER_BATCH_SIZE", [WORKER], "instructions that a worker runs as one function", 1, least=1)
COLLECTIVES = choice(
    "GT_COLLECTIVES", [WORKER], "how bytes go between workers of one host: out of each other's memory, by Gloo, or by mail",
    ("memory", "gloo", "mail"),
)  # fmt: skip
HOST = string("GT_HOST", [WORKER], "the name of this host; workers with different names count as on different hosts")
PLAIN_COLLECTIVES = flag("GT_PLAIN_COLLECTIVES", [WORKER], "`1` allows NCCL and Gloo between hosts, which do not encrypt")
TIMEOUT = seconds(
    "GT_TIMEOUT",
    ALL,
    "seconds without a sign of life after which a process on another host counts as gone; `0` for never",
    60.0,
)
WEIGHT = number(
    "GT_WEIGHT", [CLIENT], "which share of a busy worker's time this client gets, relative to the others'", 1.0, 0.01, 100.0
)
PRIORITY = choice(
    "GT_PRIORITY", [CLIENT], "multiplies that weight by 1, 4 or 1/4", ("normal", "interactive", "batch")
)  # fmt: skip
MEMORY = size("GT_MEMORY", [CLIENT], "how much of each worker's memory this client may have, such as `20GB`; 0 for any")
DEVICE_MEMORY = size(
    "GT_DEVICE_MEMORY", [WORKER],
    "how much of its device a worker's tensors may take; past it memory of idle clients moves to the host; all unless set",
)  # fmt: skip
HOST_MEMORY = size(
    "GT_HOST_MEMORY", [WORKER], "how much host memory a worker takes for tensors of idle clients; half of it unless it is set"
)  # fmt: skip
WAIT = seconds("GT_WAIT", [CLIENT], "a read that waits longer for a first worker to join is an error", None)
COLLECTIVE_TIMEOUT = seconds(
    "GT_COLLECTIVE_TIMEOUT",
    [WORKER],
    "a collective that takes longer is given up, with who did not come; `0` for never",
    1800.0,
)
STALL_SECONDS = seconds("GT_STALL_SECONDS", [WORKER], "a collective that takes longer is reported", 30.0)
TENSOR_OPS_BACKEND = string("GT_TENSOR_OPS_BACKEND", [CLIENT, WORKER], "the backend of `gt.tensor_ops`, such as `cpp`")
TENSOR_OPS_CONFIG = string("GT_TENSOR_OPS_CONFIG", [CLIENT, WORKER], "path of the `backend.json` of `gt.tensor_ops`")
VERBOSE = flag("GT_VERBOSE", [SERVER, WORKER], "`1` prints the addresses of servers, and arrivals and departures")
DEBUG_CLIENT = flag("GT_DEBUG_CLIENT", [CLIENT], "`1` shows every message of the client, on standard error")
DEBUG_DISPATCHER = flag("GT_DEBUG_DISPATCHER", [SERVER], "`1` shows the instruction log, on standard error")
DEBUG_WORKER = flag("GT_DEBUG_WORKER", [WORKER], "`1` shows every message of the worker, on standard error")
DEBUG_PROGRAMS = flag("GT_DEBUG_PROGRAMS", [WORKER], "`1` shows every program before and after each pass, on standard error")
DEBUG_COMPILE = flag("GT_DEBUG_COMPILE", [WORKER], "`1` prints the outcome of each compilation")


def check(readers: Iterable[str] = ALL) -> list[str]:
    """Raise for a value that one of these processes cannot use; a remark for each variable that GT does not know."""
    for variable in VARIABLES.values():
        if set(readers) & set(variable.readers):
            variable.value()
    return [unknown(name) for name in sorted(os.environ) if name.startswith(PREFIX) and name not in VARIABLES]


def unknown(name: str) -> str:
    near = get_close_matches(name, VARIABLES, 1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(VARIABLES))}"
    return f"GT knows no environment variable {name}: {hint}"


def without_effect(server: str) -> list[str]:
    """A remark for each variable set here that only a server or a worker reads, for a client that started neither."""
    return [
        f"{v.name} is set at this client, which connects to {server}: it is read by the {' and the '.join(v.readers)}, "
        "and has no effect here; set it where they are started"
        for v in VARIABLES.values()
        if v.text() and CLIENT not in v.readers
    ]


def warn(remarks: Iterable[str]) -> None:
    """Warn at the line of the user's that led here."""
    for remark in remarks:
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "gt":
            level, frame = level + 1, frame.f_back
        warnings.warn(remark, RuntimeWarning, level)
