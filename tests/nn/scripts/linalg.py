import numpy as np
import torch

rng = np.random.default_rng(0)
A = torch.tensor(rng.standard_normal((4, 4)), dtype=torch.float64, requires_grad=True)
b = torch.tensor(rng.standard_normal((4, 2)), dtype=torch.float64)
S = A @ A.T + 4 * torch.eye(4, dtype=torch.float64)
r = {}
r["inv"] = torch.linalg.inv(S)
r["solve"] = torch.linalg.solve(S, b)
L = torch.linalg.cholesky(S)
r["chol"] = L
r["det"] = torch.linalg.det(S), torch.logdet(S), torch.linalg.slogdet(S)[1]
w, V = torch.linalg.eigh(S)
r["eigh"] = w, V.abs()
U, s, Vh = torch.linalg.svd(S, full_matrices=False)
r["svd"] = s, (U * s) @ Vh
Q, R = torch.linalg.qr(A)
r["qr"] = (Q @ R), R.abs()
r["norms"] = (
    torch.linalg.norm(A),
    torch.linalg.norm(A, ord=1),
    torch.linalg.vector_norm(A, 3),
    torch.linalg.matrix_norm(A, "nuc"),
    A.norm(p="fro"),
    A.norm(dim=1),
    torch.linalg.cond(S),
)
r["rank"] = torch.linalg.matrix_rank(S)
r["pinv"] = torch.linalg.pinv(A[:, :2])
r["lstsq"] = torch.linalg.lstsq(A.detach(), b).solution
r["tri"] = torch.linalg.solve_triangular(L, b, upper=False)
r["power"] = torch.linalg.matrix_power(S, 3), torch.matrix_exp(A.detach() * 0.1)
r["multi"] = torch.linalg.multi_dot([A, b, b.T])
r["cs"] = torch.cholesky_solve(b, L), torch.cholesky_inverse(L.detach())
loss = (
    r["inv"].sum()
    + r["solve"].pow(2).sum()
    + L.sum()
    + r["det"][1]
    + w.sum()
    + s.log().sum()
    + R.abs().sum()
    + r["tri"].sum()
    + r["norms"][0]
)
loss.backward()
r["grad"] = A.grad
x = torch.tensor(rng.standard_normal((20, 3)), dtype=torch.float32)
r["pca"] = (x - x.mean(0)).T.cov().shape, torch.cov(x.T), torch.corrcoef(x.T)
r["cdist"] = torch.cdist(x[:4], x[4:8]), torch.pdist(x[:4])
r["cross"] = torch.cross(x[:2], x[2:4], dim=1), torch.linalg.cross(x[:2], x[2:4])
r["outer"] = (
    torch.outer(x[0], x[1]),
    torch.ger(x[0], x[1]),
    torch.kron(x[:2], x[:2]),
    torch.dot(x[0], x[1]),
    torch.mv(x, x[0]),
    torch.tensordot(x, x, dims=([0], [0])),
    torch.trace(x[:3]),
    x.mT.shape,
    x[0] @ x[1],
)
r["bmm"] = (
    torch.bmm(x.view(4, 5, 3), x.view(4, 3, 5)),
    torch.baddbmm(torch.ones(4, 5, 5), x.view(4, 5, 3), x.view(4, 3, 5), beta=0.5, alpha=2),
    torch.addmm(torch.ones(20, 20), x, x.t()),
    torch.einsum("bij,bjk->bik", x.view(4, 5, 3), x.view(4, 3, 5)),
)
r["vander"] = (
    torch.vander(torch.tensor([1.0, 2.0, 3.0])),
    torch.tril(torch.ones(3, 3), -1),
    torch.diag_embed(x[:2]).shape,
    torch.block_diag(x[:1], x[1:2]),
)
lu = torch.linalg.lu_factor(S.detach())
r["lu"] = torch.linalg.lu_solve(lu[0], lu[1], b)
result = r
