"""Valid configurations, and the errors of invalid ones."""

from __future__ import annotations

import pytest

from gt.config import Backends, Config, ShardConfig, SignalConfig, parse, parse_backends, read
from gt.errors import ConfigError
from gt.spec import REPLICATE, Shard

SEED = """
forward_layer1:
  shard:
    axis: 0                  # batch
    workers: [0, 1, 2, 3]
  backward: backward_layer1
backward_layer1:
  shard: {axis: 1, workers: [2, 3]}
parameters:
  shard: {replicated: true}
  compile: true
grid:
  mesh: {data: 2, model: 2}
  placement: [shard(0), replicate]
"""


def test_a_file_means_the_same_as_python():
    assert parse(SEED) == {
        "forward_layer1": SignalConfig(ShardConfig(0, [0, 1, 2, 3]), backward_signal="backward_layer1"),
        "backward_layer1": SignalConfig(ShardConfig(1, (2, 3))),
        "parameters": SignalConfig(ShardConfig(replicated=True), compile=True),
        "grid": SignalConfig(mesh={"data": 2, "model": 2}, placement=[Shard(0), REPLICATE]),
    }


def test_the_wire_form_names_mesh_axes_and_workers():
    wire = Config(parse(SEED)).wire()
    assert wire["forward_layer1"] == {"mesh": None, "axes": [0], "workers": (0, 1, 2, 3)}
    assert wire["parameters"] == {"mesh": None, "axes": [None], "workers": None}
    assert wire["grid"] == {"mesh": [2, 2], "axes": [0, None], "workers": None}


def test_a_signal_without_placement_is_not_sent():
    assert Config({"c": SignalConfig(compile=True)}).wire() == {}


def test_an_empty_file_has_no_signals():
    assert parse("") == {} and parse("# nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:\n  shard:\n    axes: 0\n", 3, ["'axes'", "axis, workers, replicated"]),
        ("a:\n  sharded: {}\n", 2, ["'sharded'", "shard, backward, compile, mesh, placement, workers"]),
        ("a:\n  shard:\n    axis: one\n", 3, ["axis: expected an integer, got 'one'", "known keys are axis"]),
        ("a:\n  shard:\n    axis: 0\n    workers: 3\n", 4, ["workers: expected a list", "3"]),
        ("a:\n  shard:\n    workers: [0, 0]\n", 3, ["expected different workers"]),
        ("a:\n  shard:\n    replicated: maybe\n", 3, ["true or false, got 'maybe'"]),
        ("a:\n  backward: 3\n", 2, ["a signal's name, got 3"]),
        ("a:\n  compile: often\n", 2, ["compile: expected true or false"]),
        ("a:\n  mesh: {data: 2}\n  placement: [shard(0), shard(1)]\n", 3, ["one entry for each of data"]),
        ("a:\n  mesh: {data: 2}\n  placement: [cut(0)]\n", 3, ["expected shard(AXIS) or replicate"]),
        ("a:\n  mesh: {data: 0}\n  placement: [replicate]\n", 2, ["a size from 1 up"]),
        ("a:\n  placement: [replicate]\n", 2, ["requires a mesh"]),
        ("a:\n  shard: 3\n", 2, ["expected a mapping"]),
        ("a: 3\n", 1, ["expected a mapping"]),
        ("- a\n", 1, ["expected a mapping"]),
        ("a:\n  shard: {axis: 0\n", 3, ["not YAML"]),
        ("a: {}\nb: {}\na: {}\n", 3, ["given twice"]),
    ],
)
def test_an_error_names_file_and_line(text, line, words):
    with pytest.raises(ConfigError) as raised:
        parse(text, "my.yaml")
    assert str(raised.value).startswith(f"my.yaml, line {line}: "), raised.value
    for word in words:
        assert word in str(raised.value), raised.value


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="cannot read the configuration /no/such.yaml: No such file"):
        read("/no/such.yaml")


def test_python_configs_are_checked_where_they_are_made():
    with pytest.raises(ConfigError, match="axis"):
        ShardConfig(axis="0")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give one"):
        SignalConfig(shard=ShardConfig(), mesh={"d": 2}, placement=["replicate"])
    with pytest.raises(ConfigError, match="expected 2 workers"):
        SignalConfig(mesh={"d": 2}, placement=["replicate"], workers=[0])
    with pytest.raises(ConfigError, match="expected a SignalConfig"):
        Config().register("a", {"shard": {}})  # type: ignore[arg-type]


def test_a_file_may_hold_backends_and_signals() -> None:
    text = "backend: cuda\nfallback_backends: [cpp, numpy]\nlayer1:\n  shard: {axis: 0}\n"
    assert parse_backends(text) == Backends("cuda", ("cpp", "numpy"))
    assert list(parse(text)) == ["layer1"]
    assert parse_backends("layer1: {compile: true}") == parse_backends("") == Backends()


@pytest.mark.parametrize("text", ["fallback_backends: cpp", "a: {compile: true}\nfallback_backends: [1]", "backend: [cpp]"])
def test_a_wrong_form_of_backends_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"<text>, line {text.count(chr(10)) + 1}: (fallback_backends|backend) is a"):
        parse_backends(text)
