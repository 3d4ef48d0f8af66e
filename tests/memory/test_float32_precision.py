"""The precision of float32 products: a client's setting reaches the kernels of its products, and no other client's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.backends.precision import HIGHEST
from gt.client.scope import HERE, Scope
from gt.config import ShardConfig, SignalConfig
from gt.errors import ProtocolError
from gt.ops.table import TABLE, infer
from gt.spec import Spec, float32, float64
from gt.testing import cluster
from gt.transport.checks import kind_in
from gt.transport.messages import KindDef, kind_out

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("gt.worker.engine.torch.kernels")
engine = pytest.importorskip("gt.worker.engine.torch.engine")


@pytest.fixture(autouse=True)
def highest() -> Iterator[None]:
    yield
    gt.set_float32_matmul_precision(HIGHEST)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The product and PyTorch's precision at each call of one; small ones are PyTorch's, too. A compiler that traces a program
    in its own thread computes none."""
    monkeypatch.setattr(engine, "NATIVE", None)
    found: list[tuple[str, str]] = []

    def noted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*operands: Any, **statics: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                found.append((name, torch.get_float32_matmul_precision()))
            return run(*operands, **statics)

        return call

    for name in ("matmul", "linear", "linear_weight_grad", "addmm", "einsum", "attention", "attention_grad"):
        monkeypatch.setitem(kernels.OWN, name, noted(name, kernels.OWN[name]))
    return found


def test_each_product_runs_in_the_precision_of_its_line(seen: list) -> None:
    a, w = np.eye(4, dtype=np.float32), np.ones((3, 4), np.float32)
    with cluster(1, "pytorch"):
        x, weight = gt.tensor(a, requires_grad=True), gt.tensor(w, requires_grad=True)
        for precision in ("medium", HIGHEST, "medium"):
            gt.set_float32_matmul_precision(precision)
            assert gt.get_float32_matmul_precision() == precision
            y = gt.nn.functional.linear(x, weight) @ weight
            z = gt.addmm(y, y, gt.einsum("ij,kj->ik", y, x))
            q = z.reshape(1, 1, 4, 4)
            gt.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
            assert x.grad is not None and x.grad.numpy().shape == (4, 4)
            assert {name for name, _ in seen} >= {"matmul", "linear", "linear_weight_grad", "einsum", "attention_grad"}
            assert {found for _, found in seen} == {precision}, seen
            seen.clear()
            (x.double() @ x.double()).numpy()
            assert seen == [("matmul", HIGHEST)]  # float64 has one precision
            seen.clear()
    assert torch.get_float32_matmul_precision() == HIGHEST


@pytest.mark.default("GT_TRACE")
def test_two_clients_of_one_worker_have_each_their_own(seen: list) -> None:
    with cluster(1, "pytorch") as c:
        first, second = HERE.scope, Scope(c.session())
        for _ in range(30):  # long enough for traces
            for scope, precision in ((first, "medium"), (second, HIGHEST)):
                HERE.scope = scope
                gt.set_float32_matmul_precision(precision)
                x = gt.from_numpy(np.full((4, 4), 0.25, np.float32))  # no constant, which would be computed once
                for _ in range(6):
                    x = (x @ x).relu() + 0.01
                assert np.isfinite(x.numpy()).all()
                assert seen and {found for _, found in seen} == {precision}
                seen.clear()
        HERE.scope = first
        assert c.workers[0].stats()["traces"]["calls"] > 20  # alternating settings do not keep traces from being found


@pytest.mark.default("GT_TRACE")
def test_a_captured_function_follows_the_setting(seen: list) -> None:
    with cluster(1, "pytorch"):
        step = gt.compile(lambda x: ((x @ x).relu() + 1.0).sum() * 0.5)
        x = gt.ones(4, 4)
        for _ in range(2):
            for precision in (HIGHEST, "medium"):
                gt.set_float32_matmul_precision(precision)
                seen.clear()
                assert [step(x).item() for _ in range(6)] == [40.0] * 6
                assert {found for _, found in seen} == {precision}, seen
        assert step.captures == 2 and step.replays >= 8


def test_pieces_keep_it(seen: list) -> None:
    gt.set_float32_matmul_precision("medium")  # before the session begins
    with cluster(2, "pytorch"):
        gt.register_config("rows", SignalConfig(ShardConfig(axis=0)))
        with gt.signal.context("rows"):
            x = gt.ones(8, 4)
            y = x @ gt.ones(4, 4)
        np.testing.assert_array_equal(y.numpy(), np.full((8, 4), 4.0))
    assert seen == [("matmul", "medium")] * 2


def test_tf32_of_pytorchs_backends_is_the_same_setting() -> None:
    gt.backends.cuda.matmul.allow_tf32 = True
    assert gt.get_float32_matmul_precision() == "high" and gt.backends.cuda.matmul.fp32_precision == "tf32"
    gt.backends.cuda.matmul.fp32_precision = "ieee"
    assert gt.get_float32_matmul_precision() == HIGHEST and not gt.backends.cuda.matmul.allow_tf32
    with pytest.raises(ValueError, match="ieee, tf32"):
        gt.backends.cuda.matmul.fp32_precision = "fp8"


def test_definitions_carry_it_and_refuse_others() -> None:
    single, double = Spec((2, 2), float32), Spec((2, 2), float64)
    kind = infer(TABLE["matmul"], (single, single), (), "", "high")
    assert kind_in(kind_out(1, kind)).key == kind.key != infer(TABLE["matmul"], (single, single), ()).key
    assert kind.like((single, single)).precision == "high" and kind.like((double, double)).precision == ""
    assert infer(TABLE["add"], (single, single), (), "", "high").precision == ""
    with pytest.raises(ProtocolError, match="highest, high, medium"):
        kind_in(KindDef(1, "matmul", ((float32.code, 2, 2),) * 2, (), "", "low" * 99))


def test_only_gpus_have_tf32() -> None:
    single = Spec((2, 2), float32)
    product = infer(TABLE["matmul"], (single, single), (), "", "high")
    assert engine.TorchEngine("cpu").plain(product) is kernels.OWN["matmul"]
