import numpy as np
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F


class Quantize(Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x)
        ctx.levels = levels
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = grad_output.clone()
        grad[x.abs() > 1] = 0
        return grad, None


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 16)
        self.fc21, self.fc22 = nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3 = nn.Linear(4, 16)
        self.fc4 = nn.Linear(16, 20)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar, eps):
        std = torch.exp(0.5 * logvar)
        return eps * std + mu

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x, eps):
        mu, logvar = self.encode(x.view(-1, 20))
        z = self.reparameterize(mu, logvar, eps)
        return self.decode(Quantize.apply(z, 8)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 20), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


rng = np.random.default_rng(0)
model = VAE()
model.load_state_dict(
    {k: torch.tensor(rng.standard_normal(tuple(v.shape)) * 0.3, dtype=torch.float32) for k, v in model.state_dict().items()}
)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.from_numpy(rng.random((8, 20))).float()
losses = []
for i in range(6):
    eps = torch.from_numpy(rng.standard_normal((8, 4)).astype("float32"))
    opt.zero_grad()
    recon, mu, logvar = model(x, eps)
    loss = loss_function(recon, x, mu, logvar)
    loss.backward()
    losses.append(loss.item() / len(x))
    opt.step()
grads = {n: p.grad.norm().item() for n, p in model.named_parameters()}
handle_calls = []
h = model.fc3.register_forward_hook(lambda m, i, o: handle_calls.append(tuple(o.shape)))
z = torch.zeros(2, 4, requires_grad=True)
z.register_hook(lambda g: g * 2)
model.decode(z).sum().backward()
h.remove()
a = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
ok = torch.autograd.gradcheck(lambda t: (t.sin() * t).sum(), (a,))
result = dict(losses=losses, grads=grads, recon=recon, zg=z.grad, calls=handle_calls, ok=ok)
