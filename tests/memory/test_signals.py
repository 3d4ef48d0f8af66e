"""Entering and leaving signals: the signal in each op's kind."""

from __future__ import annotations

import threading

import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.errors import ConfigError
from gt.testing import cluster


def signals(made) -> list[str]:
    """The signals of the op uses that the dispatcher was told of, in order."""
    made.settle()
    (client,) = made.dispatcher.tables.clients.values()
    return [use.kind.signal for number, use in sorted(client.uses.items()) if number]


@pytest.fixture
def made():
    with cluster(2) as c:
        for name in ("a", "b", "c"):
            gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        yield c


def test_ops_carry_the_innermost_signal(made):
    with gt.signal.context("a"):
        gt.zeros(1)
        with gt.signal("b"):
            gt.zeros(2)
        gt.zeros(3)
    gt.zeros(4)
    assert signals(made) == ["a", "b", "a", ""]


def test_enter_and_exit_have_the_effect_of_the_context(made):
    gt.signal.enter("a")
    gt.signal.enter("b")
    assert gt.signal.current() == "b"
    with pytest.raises(RuntimeError, match="cannot leave signal 'a': entered are a, b"):
        gt.signal.exit("a")
    gt.signal.exit("b")
    gt.zeros(1)
    gt.signal.exit()
    assert gt.signal.current() is None
    with pytest.raises(RuntimeError, match="no signal was entered"):
        gt.signal.exit("a")
    assert signals(made) == ["a"]


def test_gradients_run_under_the_backward_signal(made):
    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("a", backward="b"):
        y = x.exp()
    y.sum().backward()
    assert "b" in signals(made)


def test_a_configured_backward_signal_holds_where_none_is_named(made):
    gt.register_config("d", gt.SignalConfig(shard=gt.ShardConfig(), backward_signal="c"))
    x = gt.ones(2, requires_grad=True)
    with gt.signal.context("d"):
        y = x.exp()
    y.sum().backward()
    assert "c" in signals(made)


def test_grad_mode_and_signals_do_not_undo_each_other(made):
    with gt.no_grad():
        with gt.signal.context("a"):
            assert not gt.is_grad_enabled()
        assert gt.signal.current() is None and not gt.is_grad_enabled()
    assert gt.is_grad_enabled()


def test_each_thread_has_its_own_scope(made):
    found = {}
    session = made.sessions[0]

    def other() -> None:
        HERE.scope = Scope(session)
        found["other"] = gt.signal.current()

    with gt.signal.context("a"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert gt.signal.current() == "a"
    assert found == {"other": None}


def test_clients_in_different_scopes_have_their_own_signals(made):
    second = made.session()
    mine = HERE.scope
    HERE.scope = Scope(second)
    gt.register_config("a", gt.SignalConfig(shard=gt.ShardConfig(axis=1)))
    HERE.scope = mine
    made.settle()
    first, other = made.dispatcher.tables.clients.values()
    assert first.signals["a"]["axes"] == [0] and other.signals["a"]["axes"] == [1]


def test_an_unknown_signal_has_no_effect_and_warns_once(made):
    with pytest.warns(UserWarning, match="'nosuch' is not configured and has no effect: known are a, b, c") as caught:
        for _ in range(2):
            with gt.signal.context("nosuch"):
                assert gt.ones(2).numpy().tolist() == [1, 1]
    assert len(caught) == 1 and caught[0].filename == __file__


def test_configs_can_be_read_back(made, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("e:\n  shard: {axis: 1, workers: [1]}\n")
    gt.load_config(path)
    assert gt.get_config()["e"].shard == gt.ShardConfig(axis=1, workers=[1])
    assert set(gt.get_config()) == {"a", "b", "c", "e"}
    made.settle()
    assert made.dispatcher.tables.clients["c0"].signals["e"]["workers"] == [1]


def test_a_config_that_is_wrong_changes_nothing(made):
    with pytest.raises(ConfigError):
        gt.register_config("f", {"shard": {}})
    assert "f" not in gt.get_config()
