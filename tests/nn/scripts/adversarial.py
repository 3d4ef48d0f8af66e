import numpy as np
import torch
import torch.nn as nn


# DCGAN style with weights_init, spectral parts, conv transpose, hooks, module iteration
class G(nn.Module):
    def __init__(self, nz=6, ngf=4, nc=1):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(ngf, nc, 3, 1, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class D(nn.Module):
    def __init__(self, nc=1, ndf=4):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.InstanceNorm2d(ndf * 2, affine=True),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.main(x).view(-1, 1).squeeze(1)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.constant_(m.weight.data, 1.0)
        nn.init.constant_(m.bias.data, 0)


rng = np.random.default_rng(0)
g, d = G(), D()
g.apply(weights_init)
d.apply(weights_init)
for net in (g, d):
    for m in net.modules():
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            m.weight.data.copy_(torch.tensor(rng.standard_normal(tuple(m.weight.shape)), dtype=torch.float32) * 0.3)
criterion = nn.BCELoss()
og = torch.optim.Adam(g.parameters(), lr=2e-3, betas=(0.5, 0.999))
od = torch.optim.RMSprop(d.parameters(), lr=2e-3)
hist = []
for it in range(3):
    real = torch.tensor(rng.standard_normal((4, 1, 16, 16)), dtype=torch.float32)
    noise = torch.tensor(rng.standard_normal((4, 6, 1, 1)), dtype=torch.float32)
    d.zero_grad()
    label = torch.full((4,), 1.0, dtype=torch.float)
    errD_real = criterion(d(real), label)
    errD_real.backward()
    fake = g(noise)
    label.fill_(0.0)
    errD_fake = criterion(d(fake.detach()), label)
    errD_fake.backward()
    od.step()
    g.zero_grad()
    label.fill_(1.0)
    errG = criterion(d(fake), label)
    errG.backward()
    og.step()
    hist.append((errD_real.item() + errD_fake.item(), errG.item()))
img = fake.detach().mul(0.5).add_(0.5).clamp_(0, 1).permute(0, 2, 3, 1).cpu().numpy()
up = nn.functional.interpolate(real, scale_factor=0.5, mode="bilinear", align_corners=False)
result = dict(hist=hist, img=img, up=up)
