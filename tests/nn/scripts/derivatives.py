import torch
import torch.nn as nn
from torch.autograd.functional import hessian, hvp, jacobian, vjp
from torch.func import functional_call, grad, jacrev, vmap
from torch.func import vjp as fvjp


def f(x):
    return torch.stack([x[0] ** 2 * x[1], x.sin().sum(), (x * x.roll(1)).sum()])


x = torch.tensor([0.5, -1.2, 2.0])
J = jacobian(f, x)
H = hessian(lambda t: (t**3).sum() + t[0] * t[1], x)
J2 = jacobian(lambda a, b: a @ b, (torch.ones(2, 3), torch.arange(3.0)))
hv = hvp(lambda t: (t**4).sum(), x, torch.ones(3))[1]
vj = vjp(f, x, torch.ones(3))[1]
g = grad(lambda t: (t.exp() * t).sum())(x)
gg = grad(grad(lambda t: t**4))(torch.tensor(2.0))
out, pull = fvjp(f, x)
pulled = pull(torch.tensor([1.0, 0.0, 2.0]))[0]
jr = jacrev(f)(x)
w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = (w**3).sum()
(d1,) = torch.autograd.grad(y, w, create_graph=True)
(d2,) = torch.autograd.grad(d1.pow(2).sum(), w)
unused = torch.zeros(1, requires_grad=True)
d3 = torch.autograd.grad((w * 2).sum(), [w, unused], allow_unused=True)
# gradient penalty
lin = nn.Linear(3, 1)
with torch.no_grad():
    lin.weight.copy_(torch.tensor([[0.3, -0.2, 0.5]]))
    lin.bias.zero_()
inp = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]], requires_grad=True)
gp = torch.autograd.grad(
    outputs=torch.tanh(lin(inp)),
    inputs=inp,
    grad_outputs=torch.ones(2, 1),
    create_graph=True,
    retain_graph=True,
    only_inputs=True,
)[0]
pen = ((gp.norm(2, dim=1) - 1) ** 2).mean()
pen.backward()
params = dict(lin.named_parameters())
fc = functional_call(lin, {k: v * 2 for k, v in params.items()}, (inp,))


def newton(t):
    t = t.clone().requires_grad_(True)
    for _ in range(3):
        l = (t - 3) ** 4
        (gr,) = torch.autograd.grad(l, t, create_graph=True)
        (h,) = torch.autograd.grad(gr, t)
        t = (t - gr / h).detach().requires_grad_(True)
    return t


def loss_fn(p, xi):
    return torch.tanh(torch.dot(p, xi))


per = vmap(grad(loss_fn), in_dims=(None, 0))(torch.tensor([0.1, 0.2, 0.3]), inp.detach())
result = dict(
    J=J,
    H=H,
    J2=J2,
    hv=hv,
    vj=vj,
    g=g,
    gg=gg,
    pulled=pulled,
    jr=jr,
    d1=d1,
    d2=d2,
    d3=d3,
    pen=pen,
    lw=lin.weight.grad,
    fc=fc,
    nt=newton(torch.tensor(0.0)),
    per=per,
)
