"""Every optimizer against PyTorch's over several steps, and its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, close, numbers

CASES: list[tuple[str, dict]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.05}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.05, "amsgrad": True}),
    ("AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.3, "amsgrad": True, "maximize": True}),
    ("RMSprop", {"lr": 0.02}),
    ("RMSprop", {"lr": 0.02, "alpha": 0.9, "weight_decay": 0.1, "momentum": 0.8}),
    ("RMSprop", {"lr": 0.02, "centered": True, "momentum": 0.5, "maximize": True}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.3, "maximize": True}),
    ("Adadelta", {"lr": 0.5}),
    ("Adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {"lr": 0.05}),
    ("Adamax", {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.05}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.05}),
    ("RAdam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Rprop", {"lr": 0.05}),
    ("Rprop", {"lr": 0.05, "etas": (0.4, 1.5), "step_sizes": (1e-3, 0.07), "maximize": True}),
    ("ASGD", {"lr": 0.05}),
    ("ASGD", {"lr": 0.05, "lambd": 0.1, "alpha": 0.5, "t0": 2, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {"lr": 0.05}),
    ("Adafactor", {"lr": 0.5, "beta2_decay": -0.5, "eps": (1e-3, 0.1), "d": 2.0, "weight_decay": 0.1, "maximize": True}),
]
START = [numbers(3, 4), numbers(4, seed=2), numbers(2, 2, 2, seed=3)]


def _params() -> tuple[list, list]:
    return [gt.tensor(a, requires_grad=True) for a in START], [torch.tensor(a, requires_grad=True) for a in START]


def _step(optimizer: Any, params: list) -> None:
    """A loss whose gradient changes with the parameters and differs between elements."""
    optimizer.zero_grad()
    sum(((p - 0.3) ** 2 * (i + 1)).sum() + p.sin().sum() for i, p in enumerate(params)).backward()
    optimizer.step()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name, keywords", CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_an_optimizer_is_pytorchs(engine: str, name: str, keywords: dict) -> None:
    with gt.testing.cluster(1, engine):
        own, theirs = _params()
        a, b = getattr(gt.optim, name)(own, **keywords), getattr(torch.optim, name)(theirs, **keywords)
        for _ in range(6):
            _step(a, own)
            _step(b, theirs)
            for p, q in zip(own, theirs):
                close(p, q, rtol=2e-5, atol=2e-5)
                assert p.requires_grad and p.node is None
        saved, wanted = a.state_dict(), b.state_dict()
        assert saved["state"].keys() == wanted["state"].keys()
        for i, state in wanted["state"].items():
            for key, value in state.items():
                if key == "step":
                    assert saved["state"][i][key] == int(value)
                elif value is not None:
                    close(saved["state"][i][key], value, key, 2e-5, 2e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keywords", [{"lr": 0.3}, {"line_search_fn": "strong_wolfe"}, {"history_size": 2, "max_iter": 7},
                                      {"line_search_fn": "strong_wolfe", "max_eval": 6, "lr": 3.0}], ids=str)  # fmt: skip
def test_lbfgs_is_pytorchs(engine: str, keywords: dict) -> None:
    """Rosenbrock's valley: several steps, each of several evaluations of the closure."""
    start = np.array([-1.2, 1.0, 0.5], np.float64)

    def run(module: Any) -> tuple[list[float], Any, Any]:
        x = module.tensor(start, requires_grad=True)
        optimizer = module.optim.LBFGS([x], **keywords)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(3)], x, optimizer

    with gt.testing.cluster(1, engine):
        own, theirs = run(gt), run(torch)
        np.testing.assert_allclose(own[0], theirs[0], rtol=1e-6)
        close(own[1], theirs[1], rtol=1e-6, atol=1e-9)
        counts = [o.state_dict()["state"][0] for o in (own[2], theirs[2])]
        assert [s["func_evals"] for s in counts][0] == counts[1]["func_evals"] and counts[0]["n_iter"] == counts[1]["n_iter"]
        again = gt.optim.LBFGS([own[1]], **keywords)
        again.load_state_dict(own[2].state_dict())
        assert again.state_dict()["state"][0]["n_iter"] == counts[1]["n_iter"]


def test_lbfgs_asks_for_a_closure_and_one_group() -> None:
    with gt.testing.cluster():
        p = gt.ones(2, requires_grad=True)
        with pytest.raises(TypeError, match="closure"):
            gt.optim.LBFGS([p]).step()
        with pytest.raises(ValueError, match="one parameter group"):
            gt.optim.LBFGS([{"params": [p]}, {"params": [gt.ones(1, requires_grad=True)]}])
        with pytest.raises(RuntimeError, match="strong_wolfe"):
            gt.optim.LBFGS([p], line_search_fn="armijo")


def _lion(p: np.ndarray, g: np.ndarray, m: np.ndarray, lr: float, b1: float, b2: float, decay: float) -> tuple:
    """As its paper has it."""
    c = b1 * m + (1 - b1) * g
    return p - lr * (np.sign(c) + decay * p), b2 * m + (1 - b2) * g


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("maximize", [False, True])
def test_lion_is_its_papers(engine: str, maximize: bool) -> None:
    with gt.testing.cluster(1, engine):
        p = gt.tensor(START[0], requires_grad=True)
        optimizer = gt.optim.Lion([p], lr=0.01, betas=(0.8, 0.9), weight_decay=0.1, maximize=maximize)
        want, m = START[0].copy(), np.zeros_like(START[0])
        for i in range(5):
            p.grad = gt.tensor(numbers(3, 4, seed=i))
            optimizer.step()
            want, m = _lion(want, numbers(3, 4, seed=i) * (-1 if maximize else 1), m, 0.01, 0.8, 0.9, 0.1)
            np.testing.assert_allclose(p.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, keywords", [c for c in CASES if len(c[1]) > 1], ids=lambda v: v if isinstance(v, str) else "")
def test_state_moves_from_pytorch_and_goes_on(name: str, keywords: dict) -> None:
    with gt.testing.cluster(1, "pytorch"):
        _, theirs = _params()
        b = getattr(torch.optim, name)(theirs, **keywords)
        for _ in range(3):
            _step(b, theirs)
        own = [gt.from_torch(q.detach()).requires_grad_() for q in theirs]
        a = getattr(gt.optim, name)(own, **{**keywords, "lr": 9.0})
        a.load_state_dict(b.state_dict())
        assert a.param_groups[0]["lr"] == keywords["lr"]
        for _ in range(3):
            _step(a, own)
            _step(b, theirs)
        for p, q in zip(own, theirs):
            close(p, q, rtol=2e-5, atol=2e-5)


def test_state_moves_to_pytorch_and_goes_on() -> None:
    with gt.testing.cluster(1, "numpy"):
        own, _ = _params()
        a = gt.optim.AdamW(own, lr=0.05, amsgrad=True)
        for _ in range(3):
            _step(a, own)
        saved = a.state_dict()
        state = {i: {k: torch.tensor(float(v)) if k == "step" else v.torch() for k, v in s.items()}
                 for i, s in saved["state"].items()}  # fmt: skip
        theirs = [p.detach().torch().requires_grad_() for p in own]
        b = torch.optim.AdamW(theirs, lr=0.05, amsgrad=True)
        b.load_state_dict({"state": state, "param_groups": b.state_dict()["param_groups"]})
        _step(a, own)
        _step(b, theirs)
        for p, q in zip(own, theirs):
            close(p, q, rtol=2e-5, atol=2e-5)


def test_groups_have_settings_of_their_own() -> None:
    with gt.testing.cluster(1, "numpy"):
        own, theirs = _params()
        a, b = (
            o.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:], "momentum": 0.5}], lr=0.1, weight_decay=0.1)
            for o, p in ((gt.optim, own), (torch.optim, theirs))
        )
        for _ in range(3):
            _step(a, own)
            _step(b, theirs)
        for p, q in zip(own, theirs):
            close(p, q)
        a.add_param_group({"params": gt.ones(2, requires_grad=True)})
        assert [g["lr"] for g in a.param_groups] == [0.3, 0.1, 0.1]
        with pytest.raises(ValueError, match="more than one group"):
            a.add_param_group({"params": own[0]})


def test_a_parameter_without_a_gradient_stays() -> None:
    with gt.testing.cluster():
        p, q = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
        optimizer = gt.optim.AdamW([p, q], lr=0.1)
        p.sum().backward()
        optimizer.step()
        assert q.tolist() == [1.0, 1.0] and p.tolist() != [1.0, 1.0] and q not in optimizer.state


def test_a_step_is_one_instruction_a_parameter() -> None:
    with gt.testing.cluster(1, "numpy") as cluster:
        for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion"):
            params = [gt.ones(2, requires_grad=True) for _ in range(3)]
            optimizer = getattr(gt.optim, name)(params, lr=0.1)
            for _ in range(2):  # the first makes the state
                for p in params:
                    p.grad = gt.ones(2)
                cluster.settle()
                before = sum(cluster.workers[0].stats()["ops"].values())
                optimizer.step()
                cluster.settle()
            frees = cluster.workers[0].stats()["ops"]
            assert sum(frees.values()) - before == 3, f"{name}: {frees}"


def test_shared_state_takes_one_more_instruction_a_parameter() -> None:
    with gt.testing.cluster(1, "numpy") as cluster:
        for name, each in (
            ("Adadelta", 1),
            ("Adamax", 1),
            ("RAdam", 1),
            ("Rprop", 1),
            ("Adafactor", 1),
            ("NAdam", 2),
            ("ASGD", 2),
        ):
            params = [gt.ones(2, requires_grad=True) for _ in range(3)]
            optimizer = getattr(gt.optim, name)(params, lr=0.1)
            for _ in range(2):
                for p in params:
                    p.grad = gt.ones(2)
                cluster.settle()
                before = sum(cluster.workers[0].stats()["ops"].values())
                optimizer.step()
                cluster.settle()
            assert sum(cluster.workers[0].stats()["ops"].values()) - before == 3 * each, name


def test_a_closure_computes_the_loss() -> None:
    with gt.testing.cluster():
        p = gt.ones(2, requires_grad=True)
        optimizer = gt.optim.SGD([p], lr=0.5)

        def closure():
            optimizer.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss

        with gt.no_grad():
            assert optimizer.step(closure).item() == 2.0
        assert p.tolist() == [0.0, 0.0]


def test_updates_leave_no_tape_and_no_tensors_behind() -> None:
    with gt.testing.cluster(1, "numpy") as cluster:
        p = gt.ones(2, requires_grad=True)
        optimizer = gt.optim.Adam([p], lr=0.1)
        counts = []
        for _ in range(4):
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()
            cluster.settle()
            counts.append(len(cluster.workers[0].spaces["c0"].table))
        assert counts[1] == counts[2] == counts[3]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: gt.optim.SGD(p, lr=-1),
        lambda p: gt.optim.SGD(p, nesterov=True),
        lambda p: gt.optim.Adam(p, betas=(1.0, 0.9)),
        lambda p: gt.optim.AdamW(p, eps=-1),
        lambda p: gt.optim.RMSprop(p, momentum=-1),
        lambda p: gt.optim.Adagrad(p, lr_decay=-1),
        lambda p: gt.optim.Lion(p, weight_decay=-1),
        lambda p: gt.optim.Adadelta(p, rho=2),
        lambda p: gt.optim.NAdam(p, momentum_decay=-1),
        lambda p: gt.optim.Rprop(p, etas=(1.5, 1.2)),
        lambda p: gt.optim.Adafactor(p, beta2_decay=1),
        lambda p: gt.optim.SGD([]),
        lambda p: gt.optim.SGD([p[0] * 2]),
    ],
)
def test_a_wrong_setting_is_refused(make) -> None:
    with gt.testing.cluster(), pytest.raises(ValueError):
        make([gt.ones(2, requires_grad=True)])


def test_optimizers_are_importable_from_nn() -> None:
    from gt.nn import SGD, AdamW

    assert SGD is gt.optim.SGD and AdamW is gt.optim.AdamW


def _table_and_matrix(m: Any, name: str, keywords: dict) -> list:
    """Steps of an optimizer for a table of which each step uses some rows, or for a matrix."""
    start = numbers(6, 3)
    table = m.nn.Embedding(6, 3, sparse=name == "SparseAdam", _weight=m.tensor(start.copy()))
    optimizer = getattr(m.optim, name)(table.parameters(), **keywords)
    found = []
    for rows in ([0, 2, 2], [5, 0], [2, 3], [1, 2]):
        optimizer.zero_grad()
        table(m.tensor(rows)).pow(2).sum().backward()
        optimizer.step()
        found.append(np.array(table.weight.tolist()))
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name, keywords", [
    ("SparseAdam", {"lr": 0.1}), ("SparseAdam", {"lr": 0.1, "betas": (0.7, 0.9), "maximize": True}), ("Muon", {"lr": 0.1}),
    ("Muon", {"lr": 0.05, "nesterov": False, "weight_decay": 0.3, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}),
], ids=str)  # fmt: skip
def test_an_optimizer_of_tables_or_matrices_is_pytorchs(engine: str, name: str, keywords: dict) -> None:
    with gt.testing.cluster(1, engine):
        for own, theirs in zip(_table_and_matrix(gt, name, keywords), _table_and_matrix(torch, name, keywords)):
            np.testing.assert_allclose(own, theirs, rtol=2e-5, atol=2e-3 if name == "Muon" else 2e-6)  # Muon's is of bfloat16


def test_muon_takes_matrices_only() -> None:
    with gt.testing.cluster(1, "numpy"), pytest.raises(ValueError, match="Muon is for matrices"):
        gt.optim.Muon(gt.nn.Linear(2, 2).parameters())


def _averaged(m: Any, keywords: dict) -> list:
    swa = m.optim.swa_utils
    keywords = {k: v(swa) if callable(v) else v for k, v in keywords.items()}
    net = m.nn.Sequential(m.nn.Linear(3, 4), m.nn.BatchNorm1d(4), m.nn.Linear(4, 1))
    net.load_state_dict({k: m.tensor(numbers(*v.shape, seed=i) if v.dtype == m.float32 else np.int64(0))
                         for i, (k, v) in enumerate(net.state_dict().items())})  # fmt: skip
    mean = swa.AveragedModel(net, **keywords)
    optimizer = m.optim.SGD(net.parameters(), lr=0.02)
    schedule = swa.SWALR(optimizer, swa_lr=0.01, anneal_epochs=3, anneal_strategy="linear")
    data = [m.tensor(numbers(8, 3, seed=20 + i)) for i in range(5)]
    found = []
    for x in data:
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
        mean.update_parameters(net)
        schedule.step()
        found.append(optimizer.param_groups[0]["lr"])
    again = swa.AveragedModel(net, **keywords)
    again.load_state_dict(mean.state_dict())
    again.update_parameters(net)
    swa.update_bn([(x,) for x in data], again)
    return [*found, *(np.array(v.tolist()) for v in again.state_dict().values()), again.training]


@pytest.mark.parametrize("keywords", [
    {}, {"use_buffers": False, "multi_avg_fn": lambda swa: swa.get_ema_multi_avg_fn(0.8)},
    {"avg_fn": lambda swa: swa.get_swa_avg_fn()}, {"avg_fn": lambda swa: swa.get_ema_avg_fn(0.7)},
], ids=["mean", "ema of many", "swa", "ema"])  # fmt: skip
def test_averages_of_a_model_and_their_schedule_are_pytorchs(keywords: dict) -> None:
    with gt.testing.cluster(1, "numpy"):
        own, theirs = _averaged(gt, keywords), _averaged(torch, keywords)
    assert len(own) == len(theirs)
    for a, b in zip(own, theirs):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


SETTINGS = sorted({name for name, _ in CASES if hasattr(torch.optim, name)})


@pytest.mark.parametrize("name", SETTINGS)
def test_groups_have_all_settings_of_pytorchs_and_print_them(name: str) -> None:
    with gt.testing.cluster(1, "numpy"):
        own = getattr(gt.optim, name)([gt.ones(2, requires_grad=True)], lr=0.5)
        theirs = getattr(torch.optim, name)([torch.ones(2, requires_grad=True)], lr=0.5)
        assert repr(own) == repr(theirs)
        assert own.defaults == theirs.defaults
        if "foreach" in theirs.defaults:
            assert getattr(gt.optim, name)([gt.ones(2)], lr=0.5, foreach=True).param_groups[0]["foreach"] is True
