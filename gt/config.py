"""Signal configurations: the placements that a signal's name stands for. From YAML or from Python, checked; an error names the
file, the line and the known keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gt.errors import ConfigError
from gt.lazy_import import LazyImport
from gt.spec import REPLICATE, Placement, Shard

if TYPE_CHECKING:
    import yaml
else:
    yaml = LazyImport("yaml")  # most processes read no configuration

_WRITTEN = re.compile(r"\s*(?:shard\(\s*(-?\d+)\s*\)|(replicate)(?:\(\s*\))?)\s*", re.IGNORECASE)


def _whole(value: object, least: int | None = None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def placement_of(written: object) -> Placement:
    """`shard(0)`, `replicate`, or a placement itself."""
    if isinstance(written, (Shard, type(REPLICATE))):
        return written
    found = _WRITTEN.fullmatch(written) if isinstance(written, str) else None
    if not found:
        raise ConfigError(f"unknown placement {written!r}: expected shard(AXIS) or replicate", "placement")
    return REPLICATE if found[2] else Shard(int(found[1]))


def _workers(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not value or not all(_whole(w, 0) for w in value):
        raise ConfigError(f"workers: expected a list of worker numbers, got {value!r}", "workers")
    if len(set(value)) != len(value):
        raise ConfigError(f"workers: expected different workers, got {list(value)}", "workers")
    return tuple(value)


@dataclass(frozen=True)
class ShardConfig:
    """Cut along `axis` over `workers` (None: all there are), or, with `replicated`, a copy on each.

    >>> ShardConfig(axis=0, workers=[0, 1])
    ShardConfig(axis=0, workers=(0, 1), replicated=False)
    """

    axis: int = 0
    workers: Any = None
    replicated: bool = False

    def __post_init__(self) -> None:
        if not _whole(self.axis):
            raise ConfigError(f"axis: expected an integer, got {self.axis!r}", "axis")
        if not isinstance(self.replicated, bool):
            raise ConfigError(f"replicated: expected true or false, got {self.replicated!r}", "replicated")
        object.__setattr__(self, "workers", _workers(self.workers))


@dataclass(frozen=True)
class SignalConfig:
    """The settings of a signal. Either `shard`, or `mesh` with a `placement` for each of its dimensions:

    >>> SignalConfig(mesh={"data": 2, "model": 2}, placement=["shard(0)", "replicate"]).placement
    (Shard(0), Replicate())
    """

    shard: ShardConfig | None = None
    backward_signal: str | None = None
    compile: bool = False
    mesh: Any = None
    placement: Any = None
    workers: Any = None

    def __post_init__(self) -> None:
        if self.shard is not None and not isinstance(self.shard, ShardConfig):
            raise ConfigError(f"shard: expected a ShardConfig, got {self.shard!r}")
        if self.backward_signal is not None and not isinstance(self.backward_signal, str):
            raise ConfigError(f"backward: expected a signal's name, got {self.backward_signal!r}", "backward")
        if not isinstance(self.compile, bool):
            raise ConfigError(f"compile: expected true or false, got {self.compile!r}", "compile")
        object.__setattr__(self, "workers", _workers(self.workers))
        self._check_mesh()

    def _check_mesh(self) -> None:
        if self.mesh is None:
            if self.placement is not None:
                raise ConfigError("placement requires a mesh: expected mesh: {name: size, ...}", "placement")
            return
        if self.shard is not None:
            raise ConfigError("shard and mesh both say where tensors lie: give one of them", "mesh")
        if not isinstance(self.mesh, Mapping) or not self.mesh or not all(_whole(n, 1) for n in self.mesh.values()):
            raise ConfigError(
                f"mesh: expected a size from 1 up for each dimension, as in {{data: 2, model: 2}}, got {self.mesh!r}", "mesh"
            )
        written = self.placement if isinstance(self.placement, (list, tuple)) else None
        if written is None or len(written) != len(self.mesh):
            raise ConfigError(
                f"placement: expected one entry for each of {', '.join(self.mesh)}, got {self.placement!r}", "placement"
            )
        size = 1
        for n in self.mesh.values():
            size *= n
        if self.workers is not None and len(self.workers) != size:
            raise ConfigError(f"a mesh of {size}: expected {size} workers, got {len(self.workers)}", "workers")
        object.__setattr__(self, "placement", tuple(placement_of(p) for p in written))

    @property
    def highest(self) -> int:
        """The highest worker number it asks for, -1 if none in particular."""
        workers = self.workers or (self.shard.workers if self.shard else None)
        if workers:
            return max(workers)
        size = 1
        for n in (self.mesh or {}).values():
            size *= n
        return size - 1 if self.mesh else -1

    def wire(self) -> dict[str, Any] | None:
        """As the dispatcher reads it: sizes of the mesh (None: one dimension of all its workers), an axis or None for each
        of its dimensions, and the workers (None: all). None without a placement."""
        if self.mesh is not None:
            axes = [p.axis if isinstance(p, Shard) else None for p in self.placement]
            return {"mesh": list(self.mesh.values()), "axes": axes, "workers": self.workers}
        if self.shard is None:
            return None
        return {"mesh": None, "axes": [None if self.shard.replicated else self.shard.axis], "workers": self.shard.workers}


class Config(Mapping[str, SignalConfig]):
    """The signals there are, by name."""

    def __init__(self, signals: Mapping[str, SignalConfig] | None = None) -> None:
        self.signals = dict(signals or {})

    def __getitem__(self, name: str) -> SignalConfig:
        return self.signals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.signals)

    def __len__(self) -> int:
        return len(self.signals)

    def __repr__(self) -> str:
        return f"Config({self.signals})"

    def register(self, name: str, config: SignalConfig) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a signal's name: expected a word, got {name!r}")
        if not isinstance(config, SignalConfig):
            raise ConfigError(f"signal {name!r}: expected a SignalConfig, got {config!r}")
        self.signals[name] = config

    def wire(self) -> dict[str, Any]:
        return {name: w for name, c in self.signals.items() if (w := c.wire())}


# YAML keys and their arguments.
_SIGNAL = {"shard": "shard", "backward": "backward_signal", "compile": "compile", "mesh": "mesh", "placement": "placement",
           "workers": "workers"}  # fmt: skip
_SHARD = {f.name: f.name for f in fields(ShardConfig)}


def read(path: str) -> dict[str, SignalConfig]:
    """The signals of a YAML file."""
    return parse(text_of(path), str(path))


def read_backends(path: str) -> Backends:
    """The backends of workers in a YAML file."""
    return parse_backends(text_of(path), str(path))


def text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as missing:
        raise ConfigError(f"cannot read the configuration {path}: {missing.strerror}") from None


@dataclass(frozen=True)
class Backends:
    """The backend of workers, and its fallbacks in order."""

    backend: str | None = None
    fallback_backends: tuple[str, ...] = ()


_BACKENDS = tuple(f.name for f in fields(Backends))  # reserved keys, which are no names of signals


def parse(text: str, name: str = "<text>") -> dict[str, SignalConfig]:
    return {key.value: _signal(key.value, node, name) for key, node in top(text, name) if key.value not in _BACKENDS}


def parse_backends(text: str, name: str = "<text>") -> Backends:
    found: dict[str, Any] = {}
    for key, node in top(text, name):
        if key.value in _BACKENDS:
            found[key.value] = value = plain_value(node)
            words = [value] if key.value == "backend" else value
            if not isinstance(words, list) or not all(isinstance(w, str) and w for w in words):
                want = "a backend's name" if key.value == "backend" else "a list of backends' names"
                raise ConfigError(f"{place_of(node, name)}: {key.value} is {want}, not {value!r}", key.value)
    return Backends(found.get("backend"), tuple(found.get("fallback_backends", ())))


def top(text: str, name: str, what: str = "signals", known: Iterable[str] | None = None) -> list[tuple[Any, Any]]:
    """The keys and values of a whole file."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as wrong:
        mark = getattr(wrong, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: this is not YAML: {getattr(wrong, 'problem', wrong)}") from None
    return [] if root is None else pairs(root, name, what, known)


def place_of(node: yaml.Node, name: str) -> str:
    """`FILE, line 3`."""
    return f"{name}, line {node.start_mark.line + 1}"


def pairs(node: yaml.Node, name: str, what: str, known: Iterable[str] | None = None) -> list[tuple[Any, Any]]:
    """The keys and values of a mapping; unknown and duplicate keys are errors."""
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{place_of(node, name)}: {what}: expected a mapping of names to settings")
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{place_of(key, name)}: a key of {what}: expected a word")
        if known is not None and key.value not in known:
            raise ConfigError(f"{place_of(key, name)}: no key {key.value!r} in {what}: known are {', '.join(known)}")
        if key.value in seen:
            raise ConfigError(f"{place_of(key, name)}: {key.value!r} is given twice in {what}")
        seen.add(key.value)
    return node.value


def plain_value(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _signal(signal: str, node: yaml.Node, name: str) -> SignalConfig:
    given: dict[str, Any] = {}
    for key, value in pairs(node, name, f"signal {signal!r}", _SIGNAL):
        if key.value == "shard":
            settings = {k.value: plain_value(v) for k, v in pairs(value, name, f"shard of signal {signal!r}", _SHARD)}
            given["shard"] = _built(ShardConfig, settings, value, name, signal)
        else:
            given[_SIGNAL[key.value]] = plain_value(value)
    return _built(SignalConfig, given, node, name, signal)


def _built(cls: Any, settings: dict[str, Any], node: yaml.Node, name: str, signal: str) -> Any:
    try:
        return cls(**settings)
    except ConfigError as wrong:
        where = next((value for key, value in node.value if key.value == wrong.key), node)
        known = ", ".join(_SHARD if cls is ShardConfig else _SIGNAL)
        raise ConfigError(f"{place_of(where, name)}: signal {signal!r}: {wrong} (known keys are {known})", wrong.key) from None
