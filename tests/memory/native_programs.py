"""Programs over the in-process transport that print all they send and find: run with and without the hot path in C."""

from __future__ import annotations

import sys

import numpy as np

import gt
from gt.client.native import NATIVE
from gt.client.session import Session
from gt.client.user_lines import line_of
from gt.testing import cluster


def watch(session: Session) -> None:
    send = session.link.send

    def show(message: object) -> None:
        for ins in getattr(message, "code", ()):
            print("sent", ins)
        send(message)

    session.link.send = show  # type: ignore[method-assign]


def arithmetic() -> None:
    x, y = gt.tensor([1.0, -2.0, 3.0]), gt.tensor([[2], [3]])
    for z in (x * y, x + 1, 2 - x, x / 2.5, x**2, -x, x.exp(), x > 0, x @ x, (x * True).sum(), gt.where(x > 0, x, 0.0)):
        print(z.dtype.name, z.tolist())
    half = x.to(gt.float16)
    print((half * x).dtype.name, (half + 1).dtype.name, (x.to(gt.int64) // 2).tolist())


def tape() -> None:
    w, b = gt.tensor(np.arange(6, dtype="f4").reshape(3, 2), requires_grad=True), gt.zeros(2, requires_grad=True)
    x = gt.tensor([[1.0, 2.0, 3.0]])
    for _ in range(3):
        h = (x @ w + b).tanh() * 2
        with gt.no_grad():
            print((h + w.sum()).requires_grad)
        (h * h.detach() - b.exp()).sum().backward()
        print(w.grad.tolist(), b.grad.tolist())
        w.grad = b.grad = None
    first = gt.autograd.grad((w**3).sum(), w, create_graph=True)[0]
    print(gt.autograd.grad(first.sum(), w)[0].tolist())


def loop() -> None:
    x, a = gt.ones(4), gt.full((4,), 0.99)
    for i in range(700):
        x = x * a + (0.1 if i % 350 else 0.2)
    print(x.tolist())
    for i in range(12):
        kept = [((gt.ones(3) * i).exp() + j) * 2 - 1 for j in range(3)]
        print(sum(k.sum().item() for k in kept))


def mistakes() -> None:
    x = gt.ones(2, 3)
    for wrong in (lambda: x + gt.ones(4), lambda: x @ x, lambda: x * "a", lambda: x + [1, 2]):
        try:
            wrong()
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
    y = x * 3
    print(line_of(y.handle.session.asked_for(y.handle.id)).splitlines()[-1].strip())


def updates() -> None:
    """Ops on lists, parameters found in a tree of modules, and results of several."""
    gt.manual_seed(0)
    inner = gt.nn.ModuleList([gt.nn.Linear(3, 3), gt.nn.LayerNorm(3)])
    model = gt.nn.Sequential(gt.nn.Linear(3, 3), *inner, gt.nn.Sequential(inner[0], gt.nn.Tanh()))
    model.extra, model.table = [gt.zeros(3, requires_grad=True)], {"a": gt.ones(3), "b": gt.ones(1, requires_grad=True)}
    print([p.shape for p in model.parameters()], len(list(model.named_parameters())))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.1)
    for i in range(8):
        x = gt.full((2, 3), float(i % 3))
        loss = ((model(x) + model.extra[0]) ** 2).mean() + x.sort().values.sum() * model.table["b"].sum()
        optimizer.zero_grad()
        loss.backward()
        print(gt.nn.utils.clip_grad_norm_(model.parameters(), 0.5).tolist() if i % 2 else "")
        optimizer.step()
        print([p.tolist() for p in model.parameters()])


if __name__ == "__main__":
    print("native" if NATIVE is not None else "python", file=sys.stderr)
    for program in (arithmetic, tape, loop, mistakes, updates):
        with cluster(1, "numpy") as c:
            watch(c.sessions[0])
            program()
            print(program.__name__, c.sessions[0].tracer.stats()["trace_hits"])  # type: ignore[union-attr]
