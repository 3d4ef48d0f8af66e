import numpy as np
import torch

rng = np.random.default_rng(0)
x = torch.tensor(rng.standard_normal((6, 5, 4)), dtype=torch.float32)
r = {}
r["a"] = x[1:4, ..., -1]
r["b"] = x[:, [0, 2], 1]
r["c"] = x[torch.tensor([[0, 1], [2, 3]]), :, None, 2]
r["d"] = x[x > 1.0]
r["e"] = x[[True, False, True, False, True, False]]
r["f"] = x[None, 2, 1:, ::2]
r["g"] = x[torch.arange(5), torch.arange(5), :]
r["h"] = x[..., torch.tensor([3, 0])][0]
y = x.clone()
y[0] = 0
y[1, :, 2] = torch.arange(5.0)
y[y < 0] = -1.0
y[[2, 3], 1:3] += 10
y[:, -1] *= 2
r["i"] = y
z = torch.zeros(5, 3, dtype=torch.long)
z[torch.arange(5), torch.tensor([0, 2, 1, 0, 2])] = 1
r["j"] = z
r["k"] = x.gather(1, torch.tensor(rng.integers(0, 5, (6, 2, 4))))
r["l"] = torch.zeros(3, 4).scatter_(0, torch.tensor([[0, 1, 2, 0]]), torch.ones(1, 4))
r["m"] = torch.zeros(4).index_add_(0, torch.tensor([0, 1, 1, 3]), torch.ones(4))
r["n"] = torch.where(x[0] > 0, x[0], torch.zeros_like(x[0]))
r["o"] = x.masked_fill(x.abs() > 1, float("nan")).nan_to_num(0.5)
v, i = x.topk(2, dim=1)
r["p"], r["q"] = v, i
s = x.sort(dim=-1, descending=True)
r["r"], r["s"] = s.values, s.indices
r["t"] = torch.unique(torch.tensor([3, 1, 2, 3, 1]), return_counts=True)
r["u"] = x.nonzero().shape
r["v"] = torch.nonzero(x[0] > 0, as_tuple=True)
r["w"] = torch.cat([c.sum(0, keepdim=True) for c in x.chunk(4, dim=0)])
r["x"] = [tuple(p.shape) for p in x.split([1, 2, 3])]
a, b = x.unbind(0)[:2]
r["y"] = torch.einsum("ij,kj->ik", a, b)
w = torch.tensor(rng.standard_normal((4, 4)), dtype=torch.float32, requires_grad=True)
out = w[[0, 0, 1]].sum() + (w[:, 1:3] ** 2).sum() + w.diagonal().prod() + w[w > 0].sum() + w.take(torch.tensor([0, 5, 5])).sum()
out.backward()
r["grad"] = w.grad
m = torch.ones(3, 3).triu(1).bool()
r["m2"] = (~m).float() + m.to(torch.int32)
r["len"] = (len(x), x.size(), x.size(-1), x.shape[1:], x.numel(), x.dim(), x.ndim)
for row in x[:2, 0]:
    r.setdefault("rows", []).append(row.tolist())
r["swap"] = x.permute(2, 0, 1).contiguous().view(4, -1)[:, ::3]
r["exp"] = torch.arange(3).view(3, 1).expand(-1, 4).reshape(-1)
r["mg"] = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
r["rep"] = torch.tensor([1, 2]).repeat(2, 2), torch.tensor([1, 2]).repeat_interleave(2)
r["cum"] = x.cumsum(1)[:, -1], x.cummax(dim=1)[0], x.cummax(dim=1).indices
r["fl"] = x.flip(0)[0], x.roll((1, 2), dims=(0, 1))[0], torch.rot90(x[0])
r["bk"] = (
    torch.bucketize(x[0], torch.tensor([-1.0, 0.0, 1.0])),
    torch.searchsorted(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0])),
)
r["q2"] = (
    torch.quantile(x[0], 0.3, dim=0),
    x.median(),
    x.median(dim=0).values,
    x.std(unbiased=False),
    x.var(0),
    x.mode(dim=0).values.shape,
)
r["bool"] = bool((x[0, 0, 0] > -10).item()), (x > -100).all().item(), torch.any(x > 100).item()
r["type"] = [
    str(t.dtype).split(".")[-1]
    for t in (
        x.long(),
        x.int() / 2,
        x[0].argmax(),
        x > 0,
        torch.tensor([1, 2]) * 1.5,
        torch.tensor(3).double(),
        (x > 0).sum(),
        x.half() + x.bfloat16(),
    )
]
mask = torch.zeros(6, 5, dtype=torch.bool)
mask[2:4, 1] = True
r["mk"] = x[mask], x[mask, 1], x[~mask].shape
x2 = x.clone()
x2[mask] = torch.tensor([1.0, 2.0, 3.0, 4.0])
r["mk2"] = x2
x2[..., 0, :] = 7
x2[1:5:2, 0] = torch.tensor([[1.0], [2.0]])
r["x2"] = x2
r["ic"] = (
    torch.zeros(2, 3).index_copy_(1, torch.tensor([2, 0]), torch.ones(2, 2)),
    torch.zeros(3, 2).index_fill(0, torch.tensor([1]), 4.0),
)
r["sr"] = (
    torch.zeros(3).scatter_reduce(0, torch.tensor([0, 1, 1]), torch.tensor([1.0, 5.0, 3.0]), reduce="amax"),
    torch.zeros(3).scatter_(0, torch.tensor([0, 1]), 2.0),
)
result = r
