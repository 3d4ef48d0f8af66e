import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR


# style by Gram matrices, pictures of twice the size, pairs that are alike or not, waves predicted by LBFGS
def settle(model, seed=0):
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        p.data = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32) * 0.2)
    return model


def numbers(*shape):
    return torch.from_numpy(rng.standard_normal(shape)).float()


def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    batch = batch.div_(255.0)
    return (batch - mean) / std


class ConvLayer(nn.Module):
    def __init__(self, cin, cout, kernel, stride, upsample=None):
        super().__init__()
        self.upsample = upsample
        self.pad = nn.ReflectionPad2d(kernel // 2)
        self.conv = nn.Conv2d(cin, cout, kernel, stride)

    def forward(self, x):
        if self.upsample:
            x = F.interpolate(x, mode="nearest", scale_factor=self.upsample)
        return self.conv(self.pad(x))


rng = np.random.default_rng(0)
net = settle(nn.Sequential(ConvLayer(3, 4, 3, 2), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), ConvLayer(4, 3, 3, 1, 2)))
optimizer, mse = torch.optim.Adam(net.parameters(), 1e-2), nn.MSELoss()
styled = []
for _ in range(2):
    optimizer.zero_grad()
    x = numbers(2, 3, 8, 8).abs() * 100
    y = net(x)
    y_n, x_n = normalize_batch(y.clone()), normalize_batch(x.clone())
    gram = gram_matrix(x_n.detach())
    loss = 1e2 * mse(y_n, x_n)
    loss += 1e3 * mse(gram_matrix(y_n), gram[:2, :, :])
    loss.backward()
    optimizer.step()
    styled.append(loss.item())
picture = y[0].clone().clamp(0, 255).detach().numpy().transpose(1, 2, 0).astype("uint8").shape

larger = settle(nn.Sequential(nn.Conv2d(1, 8, (5, 5), (1, 1), (2, 2)), nn.ReLU(), nn.Conv2d(8, 4, 3, 1, 1), nn.PixelShuffle(2)))
psnr = 10 * torch.log10(1 / mse(larger(numbers(2, 1, 6, 6)), numbers(2, 1, 12, 12))).item()


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, stride=2))
        self.fc = nn.Sequential(nn.Linear(72, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward_once(self, x):
        out = self.features(x)
        return out.view(out.size()[0], -1)

    def forward(self, a, b):
        return torch.sigmoid(self.fc(torch.cat((self.forward_once(a), self.forward_once(b)), 1)))


pair, alike = settle(Siamese()), []
adadelta = torch.optim.Adadelta(pair.parameters(), lr=1.0)
scheduler = StepLR(adadelta, step_size=1, gamma=0.7)
for _ in range(3):
    adadelta.zero_grad()
    out = pair(numbers(4, 1, 8, 8), numbers(4, 1, 8, 8)).squeeze()
    loss = nn.BCELoss()(out, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    loss.backward()
    adadelta.step()
    scheduler.step()
    alike.append((loss.item(), torch.where(out > 0.5, 1, 0).tolist(), scheduler.get_last_lr()[0]))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.linear = nn.LSTMCell(1, 5), nn.Linear(5, 1)

    def forward(self, input, future=0):
        outputs, h = [], torch.zeros(input.size(0), 5, dtype=torch.double)
        c = h.clone()
        for step in input.split(1, dim=1):
            h, c = self.cell(step, (h, c))
            output = self.linear(h)
            outputs += [output]
        for _ in range(future):
            h, c = self.cell(output, (h, c))
            output = self.linear(h)
            outputs += [output]
        return torch.cat(outputs, dim=1)


seq = settle(Sequence()).double()
wave = torch.from_numpy(np.sin(np.arange(8) / 2.0 + np.arange(3)[:, None]))
lbfgs, calls = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=3), []


def closure():
    lbfgs.zero_grad()
    loss = mse(seq(wave[:, :-1]), wave[:, 1:])
    calls.append(loss.item())
    loss.backward()
    return loss


lbfgs.step(closure)
with torch.no_grad():
    future = seq(wave, future=2)[:, -2:]
result = dict(styled=styled, picture=picture, psnr=psnr, alike=alike, calls=calls, future=future)
