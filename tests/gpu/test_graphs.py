"""Traces as CUDA graphs give the results of the straight-line functions."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.questions import OFTEN
from gt.client.scope import HERE
from gt.nn import SGD, Linear
from gt.testing import cluster
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.graph_function import graph_kernels
from gt.worker.engine.torch.recordings import capture

pytestmark = pytest.mark.gpu


def train(steps: int, replay: bool, keep: bool, rate: Any, optimizer_of: Any, noise: int = 0) -> tuple[list, dict]:
    """`noise` is a step before which all free memory of small tensors is written over."""
    with cluster(1, "pytorch") as c:
        if not replay:
            HERE.scope.session.tracer = None
        gt.manual_seed(0)
        first, second = Linear(8, 16), Linear(16, 4)
        parameters = [*first.parameters(), *second.parameters()]
        optimizer = optimizer_of(parameters)
        x, y = gt.randn(32, 8), gt.randn(32, 4)
        losses, kept = [], []
        for i in range(steps):
            optimizer.param_groups[0]["lr"] = rate(i)
            if i == 12:
                x = gt.randn(32, 8)
            if noise and i == noise:
                gc.collect()
                kept += [gt.full(shape, 100.0) for shape in ((1,), (32, 4), (32, 16)) for _ in range(200)]
            h = first(x).relu()
            loss = ((second(h) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
            if keep and i % 5 == 2:
                kept += [h, parameters[0].detach(), parameters[1].detach().reshape(4, 4), parameters[2].detach().T]
        values = [v.numpy() for v in (*losses, *kept, *parameters)]
        return values, c.workers[0].stats()["traces"]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("rate", [lambda i: 0.1, lambda i: 0.1 / (i + 1)], ids=["fixed", "changing"])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: SGD(p, lr=0.1), lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: gt.optim.AdamW(p, lr=0.01)],
    ids=["sgd", "momentum", "adamw"],
)
def test_training_in_graphs_is_training(keep: bool, rate: Any, optimizer: Any) -> None:
    mine, stats = train(25, True, keep, rate, optimizer)
    want, _ = train(25, False, keep, rate, optimizer)
    assert stats["compiled_calls"] >= 10 and stats.get("fallbacks", 0) == 0, stats
    for a, b in zip(mine, want):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("optimizer", [lambda p: SGD(p, lr=0.1), lambda p: gt.optim.AdamW(p, lr=0.01)], ids=["sgd", "adamw"])
def test_constants_of_a_graph_outlive_its_capture(optimizer: Any) -> None:
    """Those of a second capture, too, as one of the inputs is another array from step 12 on."""
    mine, stats = train(40, True, False, lambda i: 0.1 / (i + 1), optimizer, noise=24)
    want, _ = train(40, False, False, lambda i: 0.1 / (i + 1), optimizer, noise=24)
    assert stats["graph_captures"] >= 2 and stats["compiled_calls"] >= 20 and stats.get("fallbacks", 0) == 0, str(stats)
    for a, b in zip(mine, want):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_copies_of_a_model_keep_their_weights() -> None:
    """A copy holds the values of that step, while the graph's buffers, in which they lay, get those of the next."""

    def copies(replay: bool) -> list[Any]:
        with cluster(1, "pytorch"):
            if not replay:
                HERE.scope.session.tracer = None
            gt.manual_seed(0)
            model = gt.nn.Sequential(Linear(8, 16), gt.nn.ReLU(), Linear(16, 4))
            optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
            x, y = gt.randn(32, 8), gt.randn(32, 4)
            losses, kept = [], []
            for i in range(40):
                optimizer.zero_grad()
                loss = ((model(x) - y) ** 2).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss)
                if i > 10 and i % 4 in (0, 3):
                    kept.append(copy.deepcopy(model))
            return [p.detach().numpy() for m in (*kept, model) for p in m.parameters()] + [loss.numpy() for loss in losses]

    for a, b in zip(copies(True), copies(False)):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_graphs_that_are_garbage_do_not_break_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.worker.engine.torch import cuda_graph

    a, cycles, held = torch.ones(3, device="cuda"), list[list](), cuda_graph._held
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a + 1
    cycles.append([graph])
    cycles[0].append(cycles[0])
    del graph

    def collecting(device: Any) -> int:  # the first call in a capture
        cycles.clear()
        if gc.isenabled():
            gc.collect()
        return held(device)

    monkeypatch.setattr(cuda_graph, "_held", collecting)
    _, stats = train(12, True, False, lambda i: 0.1, lambda p: SGD(p, lr=0.1))
    assert not cycles and stats["compiled_calls"] >= 5 and stats.get("fallbacks", 0) == 0, stats


def images(steps: int, replay: bool, optimizer_of: Any) -> tuple[list, dict]:
    """A network of convolutions with fresh images in each step; weights are read in the midst, and go through other ops."""
    nn = gt.nn
    with cluster(1, "pytorch") as c:
        if not replay:
            HERE.scope.session.tracer = None
        gt.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16),
            nn.ReLU(), nn.Conv2d(16, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.Flatten(), nn.Linear(32 * 64, 5),
        )  # fmt: skip
        optimizer, rng, found = optimizer_of(model.parameters()), np.random.default_rng(0), []
        for i in range(steps):
            x = gt.from_numpy(rng.standard_normal((8, 3, 16, 16), np.float32))
            loss = (model(x) ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss)
            if i % 6 == 5:
                w = model[3].weight.detach()
                found += [w.reshape(16, -1) @ gt.ones(144), w.sum(1), model(x).detach().mean()]
        values = [v.numpy() for v in (*found, *model.parameters())]
        return values, c.workers[0].stats()["traces"]


@pytest.mark.parametrize("optimizer", [lambda p: SGD(p, lr=0.01, momentum=0.9), lambda p: gt.optim.AdamW(p, lr=1e-3)])
def test_images_in_graphs_have_their_channels_last_and_the_same_numbers(optimizer: Any) -> None:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    mine, stats = images(30, True, optimizer)
    want, _ = images(30, False, optimizer)
    assert stats["compiled_calls"] >= 10 and stats.get("fallbacks", 0) == 0, stats
    assert before == (True, False), "as PyTorch has it: else the images would stay as they are"
    for a, b in zip(mine, want):
        np.testing.assert_allclose(a, b, rtol=5e-2, atol=5e-3)  # convolutions of TF32, by other kernels


def test_attention_on_the_gpu_is_pytorchs() -> None:
    q = np.random.default_rng(0).standard_normal((3, 2, 2, 40, 16)).astype(np.float32)
    with cluster(1, "pytorch"):
        mine = [gt.tensor(a, requires_grad=True) for a in q]
        y = gt.nn.functional.scaled_dot_product_attention(*mine, is_causal=True)
        (y * y).sum().backward()
        found = [y.numpy(), *(m.grad.numpy() for m in mine)]
    theirs = [torch.tensor(a, requires_grad=True, device="cuda") for a in q]
    z = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True)
    (z * z).sum().backward()
    for a, b in zip(found, [z.detach(), *(t.grad for t in theirs)]):
        np.testing.assert_allclose(a, b.cpu().numpy(), rtol=2e-3, atol=2e-4)


def averaged(steps: int, replay: bool) -> tuple[list[np.ndarray], dict]:
    """Parameters, and their running average, of a network with attention whose keys are masked."""
    with cluster(1, "pytorch") as c:
        if not replay:
            HERE.scope.session.tracer = None
        gt.manual_seed(0)
        layer, averages = gt.nn.TransformerEncoderLayer(32, 2, 64, 0.0, "gelu", batch_first=True), []
        averages += [p.detach().clone() for p in layer.parameters()]
        optimizer = gt.optim.SGD(layer.parameters(), lr=0.05)
        rng = np.random.default_rng(0)
        for _ in range(steps):
            x = gt.from_numpy(rng.standard_normal((4, 20, 32)).astype(np.float32))
            hidden = gt.from_numpy(np.arange(20) >= rng.integers(10, 21, (4, 1)))
            loss = (layer(x, src_key_padding_mask=hidden) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with gt.no_grad():
                for a, p in zip(averages, layer.parameters()):
                    a.mul_(0.9).add_(p, alpha=0.1)
        return [a.detach().numpy() for a in (*averages, *layer.parameters())], c.workers[0].stats()["traces"]


def test_masked_attention_and_running_averages_in_graphs_give_the_same_numbers() -> None:
    mine, stats = averaged(30, True)
    want, _ = averaged(30, False)
    assert stats["compiled_calls"] >= 10 and stats.get("fallbacks", 0) == 0, stats
    for a, b in zip(mine, want):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def residuals(steps: int, replay: bool) -> tuple[list[float], dict]:
    """A network with residual connections and norms: its losses, and statistics."""
    with cluster(1, "pytorch") as c:
        if not replay:
            HERE.scope.session.tracer = None
        gt.manual_seed(0)
        parts = [(gt.nn.LayerNorm(256), Linear(256, 256)) for _ in range(3)]
        optimizer = gt.optim.AdamW([p for pair in parts for part in pair for p in part.parameters()], lr=0.01)
        data = np.random.default_rng(0).standard_normal((steps, 512, 256)).astype(np.float32)
        losses = []
        for i in range(steps):
            x = gt.from_numpy(data[i])
            for norm, linear in parts:
                x = x + gt.nn.functional.gelu(linear(norm(x)))
            loss = (x * x).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        read = [loss.item() for loss in losses]
        return read, c.workers[0].stats()["traces"]


def test_norms_of_residual_sums_in_graphs_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    fused: set[str] = set()

    def noted(kind: Any) -> Any:
        fused.update((kind.row.name,) if (found := kernel(kind)) is not None else ())
        return found

    kernel = graph_kernels.kernel
    monkeypatch.setattr(graph_kernels, "kernel", noted)
    mine, stats = residuals(30, True)
    want, _ = residuals(30, False)
    assert stats["compiled_calls"] >= 10 and stats.get("fallbacks", 0) == 0, stats
    assert fused == {"layer_norm_grad", "add_layer_norm", "add_layer_norm_grad", "gelu"}
    np.testing.assert_allclose(mine, want, rtol=2e-4)


@pytest.mark.parametrize("shape", [(6, 5, 4, 3), (6, 5, 7), (4, 3, 2, 5, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_norm_on_the_gpu_is_cudnns_as_pytorchs_is(shape: tuple, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, g = rng.standard_normal((2, *shape)).astype(dtype)
    w, b = rng.standard_normal((2, shape[1])).astype(dtype)
    with cluster(1, "pytorch"):
        mine = [gt.tensor(x, requires_grad=True) for x in (a, w, b)]
        moving = [gt.zeros(shape[1], dtype=dtype), gt.ones(shape[1], dtype=dtype)]
        y = gt.nn.functional.batch_norm(mine[0], *moving, mine[1], mine[2], True)
        (y * gt.tensor(g)).sum().backward()
        found = [x.numpy() for x in (y.detach(), *moving, *(m.grad for m in mine))]
    kind = getattr(torch, dtype)
    theirs = [torch.tensor(x, requires_grad=True, device="cuda") for x in (a, w, b)]
    running = [torch.zeros(shape[1], device="cuda", dtype=kind), torch.ones(shape[1], device="cuda", dtype=kind)]
    z = torch.nn.functional.batch_norm(theirs[0], *running, theirs[1], theirs[2], True)
    (z * torch.tensor(g, device="cuda")).sum().backward()
    want = [x.detach().cpu().numpy() for x in (z, *running, *(t.grad for t in theirs))]
    assert z.grad_fn is not None and "Cudnn" in type(z.grad_fn).__name__
    for i, (x, right) in enumerate(zip(found, want)):
        if i in (1, 2):  # the running values, which GT moves by an op of its own
            np.testing.assert_allclose(x, right, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(x, right)


def test_a_graph_is_checked_where_one_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_CHECK_COMPILED", "1")
    mine, stats = train(25, True, True, lambda i: 0.1, lambda p: SGD(p, lr=0.1, momentum=0.9))
    want, _ = train(25, False, True, lambda i: 0.1, lambda p: SGD(p, lr=0.1, momentum=0.9))
    assert stats["compiled_calls"] >= 10 and stats.get("fallbacks", 0) == 0, stats
    for a, b in zip(mine, want):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_a_graph_that_is_wrong_is_left_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.worker.engine.torch import cuda_graph

    def wrong(program: Any, kinds: Any, engine: Any, **_: Any) -> Any:
        right = capturable(program, kinds, engine, False)
        return lambda *given: tuple(made * 1.5 for made in right(*given))

    capturable = cuda_graph.capturable
    monkeypatch.setattr(cuda_graph, "capturable", wrong)
    monkeypatch.setenv("GT_CHECK_COMPILED", "1")
    mine, stats = train(25, True, True, lambda i: 0.1, lambda p: SGD(p, lr=0.1))
    want, _ = train(25, False, True, lambda i: 0.1, lambda p: SGD(p, lr=0.1))
    assert stats["fallbacks"] >= 1 and any("captured, its result" in name for name in stats), stats
    for a, b in zip(mine, want):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def multiplied(precision: str, steps: int = 12) -> tuple[list[np.ndarray], float]:
    """Products in eager form and in a CUDA graph, at a precision, and the recorded calls."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 256, 256)).astype(np.float32)
    with cluster(1, "pytorch") as c:
        gt.set_float32_matmul_precision(precision)
        try:
            x, w, found = gt.tensor(a), gt.tensor(b), []
            for _ in range(steps):
                y = x @ w
                for _ in range(4):
                    y = (y * 0.5).relu() + 0.25
                found.append((gt.nn.functional.linear(y, w) * 0.125).numpy())
            return found, c.workers[0].stats()["traces"]["compiled_calls"]
        finally:
            gt.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_products_have_the_precision_that_was_set(precision: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (torch.tensor(v, device="cuda") for v in rng.standard_normal((2, 256, 256)).astype(np.float32))
    torch.set_float32_matmul_precision(precision)
    try:
        y = a @ b
        for _ in range(4):
            y = (y * 0.5).relu() + 0.25
        want = (torch.nn.functional.linear(y, b) * 0.125).cpu().numpy()
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = multiplied("highest")[0][0]
    found, recorded = multiplied(precision)
    assert recorded > 0
    rounding = np.abs(want - exact).max()
    assert rounding < 1e-4 if precision == "highest" else rounding > 1e-3
    for value in found:
        assert np.abs(value - want).max() < max(0.3 * rounding, 1e-4)  # another algorithm may sum in another order
    assert torch.get_float32_matmul_precision() == "highest"


def losses_read(steps: int, replay: bool, clear: bool = False) -> tuple[list[list[float]], dict]:
    """A deep network whose loss is read in each step, that of the step before in every third, and both at the end. With `clear`
    gradients end with their step, else with the next one's forward pass."""
    with cluster(1, "pytorch") as c:
        if not replay:
            HERE.scope.session.tracer = None
        gt.manual_seed(0)
        model = gt.nn.Sequential(*[layer for _ in range(12) for layer in (Linear(16, 16), gt.nn.Tanh())])
        optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
        data = np.random.default_rng(0).standard_normal((steps, 2, 8, 16)).astype(np.float32)
        losses, read = [], []
        for i in range(steps):
            x, y = (gt.from_numpy(a) for a in data[i])
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if clear:
                optimizer.zero_grad()
            losses.append(loss)
            read.append([loss.item()] + ([losses[-2].item(), loss.item()] if i % 3 == 2 else []))
        read.append([loss.item() for loss in losses])
        return read, c.workers[0].stats()["traces"]


@pytest.mark.parametrize("clear", [False, True])
def test_a_loss_read_in_every_step_is_that_of_its_step(clear: bool) -> None:
    mine, stats = losses_read(40, True, clear)
    want, _ = losses_read(40, False, clear)
    assert stats["compiled_calls"] >= 20 and stats.get("fallbacks", 0) == 0, stats
    for a, b in zip(mine, want):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    for i, read in enumerate(mine[:-1]):
        assert read[0] == mine[-1][i] and (len(read) == 1 or read[1:] == mine[-1][i - 1 : i + 1]), "the same bits each time"


@pytest.mark.parametrize("clear", [False, True])
def test_updates_behind_a_read_copy_no_gradients(monkeypatch: pytest.MonkeyPatch, clear: bool) -> None:
    moved, copy_in = [], Graph._copy_in

    def counted(graph: Graph, arrays: list[torch.Tensor]) -> None:
        moved.append([a.shape for a, buffer in zip(arrays, graph.statics) if a is not buffer])
        copy_in(graph, arrays)

    monkeypatch.setattr(Graph, "_copy_in", counted)
    _, stats = losses_read(40, True, clear)
    assert stats["compiled_calls"] >= 20 and stats.get("fallbacks", 0) == 0, stats
    assert all(set(shapes) <= {(8, 16)} and len(shapes) <= 2 for shapes in moved[-10:]), moved[-10:]  # the batch alone


def test_a_small_result_is_read_while_the_rest_of_its_graph_runs() -> None:
    with cluster(1, "pytorch") as c:
        a, busy = gt.eye(2048), []
        for i in range(48):  # the step as a whole is recorded, then the one that is called early, while Python goes on
            x = gt.from_numpy(np.full((4, 4), i, np.float32))
            first = x.sum()
            for _ in range(48):
                a = a @ a
            assert first.item() == 16 * i
            busy.append(not c.workers[0].streams.stream().query())
        assert all(busy[-4:]), busy
        assert a[:2, :2].numpy().tolist() == [[1, 0], [0, 1]]
        assert c.workers[0].stats()["traces"]["compiled_calls"] >= 4


def test_a_question_that_comes_again_is_a_graph_with_the_same_answers() -> None:
    """Of fresh inputs, of the one before, with numbers that change; an answer that is held is not written over."""
    rng = np.random.default_rng(0)
    with cluster(1, "pytorch") as c:
        fixed = rng.standard_normal((16, 16)).astype(np.float32)
        a, state, held = gt.from_numpy(fixed), gt.ones(16), []
        for i in range(4 * OFTEN):
            x = rng.standard_normal((16, 16)).astype(np.float32)
            np.testing.assert_allclose((gt.from_numpy(x) @ a).sum(0).numpy(), (x @ fixed).sum(0), rtol=1e-4, atol=1e-4)
            assert (a * 0.0 + float(i)).mean().item() == float(i)
            state = state + 1.0
            held.append(state * 2.0)
            assert held[-1].numpy().tolist() == [2.0 * (i + 2)] * 16
        assert [h[0].item() for h in held] == [2.0 * (i + 2) for i in range(len(held))]
        stats = c.workers[0].stats()["traces"]
        assert stats["graph_captures"] >= 2 and stats["compiled_calls"] > 2 * OFTEN and not stats.get("fallbacks"), stats


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64", "complex64"])
def test_a_question_answers_in_every_dtype(dtype: str) -> None:
    with cluster(1, "pytorch") as c:
        a = gt.tensor([[0, 1, 1], [1, 0, 1]], dtype=getattr(gt, dtype))
        rotated = a * 1j if dtype == "complex64" else a
        first = ((a + a) * a).tolist(), (rotated * a).conj().T.tolist(), (a * a).sum().item()
        for _ in range(3 * OFTEN):
            assert ((a + a) * a).tolist() == first[0]
            assert (rotated * a).conj().T.tolist() == first[1]
            assert (a * a).sum().item() == first[2]
        assert c.workers[0].stats()["traces"]["compiled_calls"] > 3 * OFTEN


def test_host_memory_that_a_replay_writes_is_nobody_elses_before_its_end() -> None:
    with cluster(1, "pytorch") as c:
        a = gt.ones(3)
        for _ in range(3 * OFTEN):
            assert ((a + a) * a).tolist() == [2.0] * 3
        engine = c.workers[0].engine
        [graph] = [graph for graph in engine.graphs if graph.recordings]
        recording = graph.recordings.pop(0)
        address = next(result.host.host.data_ptr() for result in recording.results)
        stream = engine.streams.stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1 << 30)
            recording.graph.replay()
        recording.give_up()
        del recording
        assert not stream.query()
        others = [torch.empty(3, pin_memory=True) for _ in range(256)]
        assert not stream.query(), "the replay has not ended"
        assert address not in {other.data_ptr() for other in others}
        stream.synchronize()
        graph.drop()
        assert len(engine.streams.written) <= 2, "the first one's memory was given back"


def test_the_capture_of_a_question_waits_for_no_other_work() -> None:
    at = torch.device("cuda")
    stream, x, busy = torch.cuda.Stream(at), torch.ones(64, device=at), torch.cuda.Event()
    y = x * 2.0  # CUDA loads a kernel when it is first used, and waits for others then
    graph, host, other = torch.cuda.CUDAGraph(), torch.empty(64, pin_memory=True), torch.cuda.Stream(at)
    torch.cuda.synchronize(at)
    with torch.cuda.stream(other):
        torch.cuda._sleep(1 << 32)  # seconds
        busy.record()
    with capture(graph, stream, quiet=True):
        y = x * 3.0
        host.copy_(y, non_blocking=True)
    with torch.cuda.stream(stream):
        graph.replay()
    stream.synchronize()
    assert not busy.query() and host.tolist() == [3.0] * 64
    torch.cuda.synchronize(at)
