"""Sparse matrices as scripts with graphs use them: PyTorch's numbers and gradients, and a clear word about the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt

# `a` is a sparse matrix with a place that stands twice, `v` its values, `x` and `y` dense ones; t is torch or gt.
LINES = """
t.sparse.mm(a, x); t.spmm(a, x); t.mm(a, x); t.matmul(a, x); a @ x; a.t() @ x; a.mm(x); a @ x[:, 0]
(a * 2).to_dense(); a.to_dense()
a.coalesce().values(); a.coalesce().indices(); (a + a).to_dense(); a._values(); a.t().to_dense()
t.sparse.addmm(y, a, x, beta=0.5)
x.to_sparse().to_dense(); (x * (x > 0)).to_sparse().values(); t.sparse.mm(a.coalesce().to_sparse_csr(), x, "mean")
t.sparse.mm(a.coalesce().to_sparse_csr(), x, "amax"); t.sparse.sampled_addmm(a.coalesce().to_sparse_csr(), x, x.t()).values()
t.sparse_csr_tensor(t.tensor([0, 1, 3]), t.tensor([1, 0, 1]), v[:3], (2, 3)).to_dense()
t.sparse.sum(a); (a.coalesce() * (x @ x.t())).to_dense()
"""
CALLS = [line.strip() for line in LINES.replace("\n", ";").split(";") if line.strip()]


def run(line, t):
    rng = np.random.default_rng(4)
    places = t.tensor([[0, 1, 1, 2, 0], [1, 0, 2, 2, 1]])
    shapes = {"x": (3, 4), "y": (3, 4), "v": (5,)}
    names = {n: t.tensor(rng.uniform(-2, 2, shape), requires_grad=True) for n, shape in shapes.items()}
    with torch.enable_grad():
        a = t.sparse_coo_tensor(places, names["v"], (3, 3), check_invariants=True)
        found = eval(line, {"t": t, "a": a, **names})
        if found.requires_grad:
            (found * found).sum().backward()
    return found.detach().numpy(), {n: leaf.grad for n, leaf in names.items()}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("line", CALLS)
@pytest.mark.parametrize("engine,workers", [("numpy", 1), ("pytorch", 3)])
def test_a_line_with_a_sparse_matrix_gives_the_same_in_gt(line, engine, workers):
    with gt.testing.cluster(workers, engine):
        (found, ours), (want, theirs) = run(line, gt), run(line, torch)
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-9, strict=True)
        for name, g in theirs.items():
            assert (g is None) == (ours[name] is None), name
            if g is not None:
                np.testing.assert_allclose(ours[name].numpy(), g.numpy(), rtol=1e-6, atol=1e-9, err_msg=name)


def test_a_graph_convolution_trains():
    """Two communities, one edge between them, and one node of each known."""
    edges = [(i, j) for block in (range(4), range(4, 8)) for i in block for j in block] + [(3, 4), (4, 3)]
    with gt.testing.cluster(2):
        gt.manual_seed(0)
        adjacency = gt.sparse_coo_tensor(np.array(edges).T, np.ones(len(edges), np.float32), (8, 8))
        degree = adjacency.sum(1)
        layers = gt.nn.Linear(8, 6), gt.nn.Linear(6, 2)
        features, labels = gt.eye(8), gt.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        optimizer = gt.optim.Adam([p for layer in layers for p in layer.parameters()], lr=0.05)
        for _ in range(60):
            hidden = gt.relu(gt.spmm(adjacency, layers[0](features)) / degree.unsqueeze(1))
            scores = gt.sparse.mm(adjacency, layers[1](hidden)) / degree.unsqueeze(1)
            loss = gt.nn.functional.cross_entropy(scores[[0, 7]], labels[[0, 7]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert scores.argmax(1).tolist() == labels.tolist()


def test_ops_that_sparse_tensors_lack_raise_their_reason():
    with gt.testing.cluster(1, "numpy"):
        a = gt.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse()
        with pytest.raises(NotImplementedError, match="use to_dense"):
            a.relu()
        with pytest.raises(NotImplementedError, match="two sparse matrices"):
            gt.sparse.mm(a, a)
        with pytest.raises(ValueError, match="outside its size"):
            gt.sparse_coo_tensor([[0], [2]], [1.0], (2, 2))
        with pytest.raises(RuntimeError, match="coalesce"):
            gt.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)).values()
