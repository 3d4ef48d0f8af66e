"""Loops over images: ResNet-18, ViT, a GAN, a variational autoencoder, a diffusion model's U-Net."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from loops import Loop, Setting, Steps, classify


def resnet18(lib: Any, width: int = 64, classes: int = 10) -> Any:
    """For 32 x 32: a first convolution of 3 x 3 and no pooling after it."""
    nn = lib.nn

    class Block(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
            self.conv2, self.norm2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
            self.short = nn.Sequential()
            if stride != 1 or a != b:
                self.short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

        def forward(self, x: Any) -> Any:
            y = self.norm1(self.conv1(x)).relu()
            return (self.norm2(self.conv2(y)) + self.short(x)).relu()

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            sizes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2), (4 * width, 8 * width, 2)]
            blocks = [b for i, o, s in sizes for b in (Block(i, o, s), Block(o, o, 1))]
            self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(8 * width, classes)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    return ResNet()


def vit(lib: Any, image: int, patch: int, width: int, layers: int, heads: int) -> Any:
    nn = lib.nn
    count = (image // patch) ** 2

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, patch)
            self.place, self.first = nn.Parameter(lib.zeros(1, count + 1, width)), nn.Parameter(lib.zeros(1, 1, width))
            layer = partial(nn.TransformerEncoderLayer, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            self.layers = nn.ModuleList([layer(width, heads, 4 * width) for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)  # (batch, count, width)
            x = lib.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x[:, 0]))

    return ViT()


def resnet_loop(at: Setting) -> Steps:
    width, image, size = at.pick((64, 32, 128), (8, 16, 8))
    model = at.model(partial(resnet18, width=width))
    optimizer = at.lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    return classify(at, model, optimizer, (3, image, image), size)


def vit_loop(at: Setting) -> Steps:
    image, patch, width, layers, heads, size = at.pick((64, 8, 256, 6, 4, 64), (16, 4, 32, 2, 2, 8))
    model = at.model(partial(vit, image=image, patch=patch, width=width, layers=layers, heads=heads))
    return classify(at, model, at.lib.optim.AdamW(model.parameters(), lr=1e-3), (3, image, image), size)


def gan(at: Setting) -> Steps:
    """Two networks, two optimizers, each step one of both."""
    lib, F = at.lib, at.lib.nn.functional
    wide, noise, pixels, size = at.pick((512, 64, 784, 128), (32, 8, 64, 16))

    def net(sizes: tuple[int, ...], lib: Any) -> Any:
        nn = lib.nn
        pairs = list(zip(sizes, sizes[1:]))
        parts = [part for a, b in pairs for part in (nn.Linear(a, b), nn.LeakyReLU(0.2))]
        return nn.Sequential(*parts[:-1])

    maker, judge = at.model(partial(net, (noise, wide, wide, pixels))), at.model(partial(net, (pixels, wide, wide, 1)))
    of_maker, of_judge = (lib.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (maker, judge))
    data = at.batches(lambda rng: tuple(rng.standard_normal((size, n), np.float32) for n in (pixels, noise)))

    def told(x: Any, real: bool) -> Any:
        y = judge(x)
        return F.binary_cross_entropy_with_logits(y, lib.ones_like(y) if real else lib.zeros_like(y))

    judged = at.compiled(lambda x, fake: told(x, True) + told(fake, False))
    fooled = at.compiled(lambda z: told(maker(z).tanh(), True))
    made = at.compiled(lambda z: maker(z).tanh())

    def steps(n: int) -> list[float]:
        losses = []
        for i in range(n):
            x, z = (at.put(a) for a in data(i))
            with lib.no_grad():
                fake = at.kept(made(z))
            of_judge.zero_grad()
            loss_of_judge = at.kept(judged(x, fake))
            loss_of_judge.backward()
            of_judge.step()
            of_judge.zero_grad()  # the next backward gives it gradients, too, which nobody uses
            of_maker.zero_grad()
            loss = fooled(z)
            loss.backward()
            of_maker.step()
            if i % 10 == 9:
                losses += [loss_of_judge.item(), loss.item()]
        return losses

    return steps


def vae(at: Setting) -> Steps:
    """Encoder, a sample, decoder; two terms of the loss, both read every 10 steps."""
    lib, F = at.lib, at.lib.nn.functional
    wide, code, pixels, size = at.pick((512, 32, 784, 128), (32, 4, 64, 16))

    def make(lib: Any) -> Any:
        nn = lib.nn

        class VAE(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.enter, self.mean, self.log_var = nn.Linear(pixels, wide), nn.Linear(wide, code), nn.Linear(wide, code)
                self.decode = nn.Sequential(nn.Linear(code, wide), nn.ReLU(), nn.Linear(wide, pixels))

            def forward(self, x: Any, noise: Any) -> Any:
                h = self.enter(x).relu()
                mean, log_var = self.mean(h), self.log_var(h)
                return self.decode(mean + noise * (0.5 * log_var).exp()), mean, log_var

        return VAE()

    model = at.model(make)
    optimizer = lib.optim.Adam(model.parameters(), lr=1e-3)
    data = at.batches(lambda rng: (rng.random((size, pixels), np.float32), rng.standard_normal((size, code), np.float32)))

    def terms(x: Any, noise: Any) -> Any:
        y, mean, log_var = model(x, noise)
        apart = F.binary_cross_entropy_with_logits(y, x, reduction="sum") / size
        return apart, -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum() / size

    forward = at.compiled(terms)

    def steps(n: int) -> list[float]:
        losses = []
        for i in range(n):
            x, noise = (at.put(a) for a in data(i))
            apart, prior = forward(x, noise)
            optimizer.zero_grad()
            (apart + prior).backward()
            optimizer.step()
            if i % 10 == 9:
                losses += [apart.item(), prior.item()]
        return losses

    return steps


def unet(lib: Any, width: int) -> Any:
    """Two levels down and up, with the time's embedding added in each block."""
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.norm1, self.conv1, self.time = nn.GroupNorm(min(8, a), a), nn.Conv2d(a, b, 3, padding=1), nn.Linear(width, b)
            self.norm2, self.conv2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, padding=1)
            self.short = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

        def forward(self, x: Any, t: Any) -> Any:
            h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
            return self.conv2(F.silu(self.norm2(h))) + self.short(x)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
            self.down1, self.down2 = Block(width, width), Block(width, 2 * width)
            self.middle = Block(2 * width, 2 * width)
            self.up2, self.up1 = Block(4 * width, width), Block(2 * width, width)

        def forward(self, x: Any, angles: Any) -> Any:
            t = self.time(lib.cat([angles.sin(), angles.cos()], 1))
            a = self.down1(self.enter(x), t)
            b = self.down2(F.avg_pool2d(a, 2), t)
            m = self.middle(F.avg_pool2d(b, 2), t)
            b = self.up2(lib.cat([F.interpolate(m, scale_factor=2.0, mode="nearest"), b], 1), t)
            return self.leave(self.up1(lib.cat([F.interpolate(b, scale_factor=2.0, mode="nearest"), a], 1), t))

    return UNet()


def diffusion(at: Setting) -> Steps:
    """A step of denoising: noise of a random time added to images, which the network predicts; AdamW and a running average."""
    lib, F = at.lib, at.lib.nn.functional
    width, image, size = at.pick((64, 32, 64), (8, 8, 4))
    model, average = at.model(partial(unet, width=width)), at.model(partial(unet, width=width))
    optimizer = lib.optim.AdamW(model.parameters(), lr=2e-4)
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)).astype(np.float32)
    rates = np.exp(-np.log(1e4) * np.arange(width // 2) / (width // 2)).astype(np.float32)

    def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x, noise = (rng.standard_normal((size, 3, image, image), np.float32) for _ in range(2))
        t = rng.integers(0, 1000, size)
        return x, noise, kept[t].reshape(-1, 1, 1, 1), (t[:, None] * rates).astype(np.float32)

    data = at.batches(batch)

    def loss_of(x: Any, noise: Any, keep: Any, angles: Any) -> Any:
        return F.mse_loss(model(keep.sqrt() * x + (1 - keep).sqrt() * noise, angles), noise)

    forward = at.compiled(loss_of)

    def steps(n: int) -> list[float]:
        losses = []
        for i in range(n):
            loss = forward(*(at.put(a) for a in data(i)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with lib.no_grad():
                for a, p in zip(average.parameters(), model.parameters()):
                    a.mul_(0.999).add_(p, alpha=0.001)
            if i % 10 == 9:
                losses.append(loss.item())
        return losses

    return steps


# benchmarks/results/README.md has the profiles
AFTER_READS = "after a read, every fifth step, the device waits for the next batch"
CALLS = "most of the worker's time are calls of oneDNN's convolutions, which eager makes, too, and on two threads"
LOOPS = {
    # batch norm multiplies roundings
    "resnet18": Loop(resnet_loop, tolerance=5e-2, compare=1, why_on_gpu=AFTER_READS, why_on_cpu=CALLS),
    "vit": Loop(vit_loop, why_on_gpu=AFTER_READS),
    "gan": Loop(gan),
    "vae": Loop(vae),
    "diffusion": Loop(diffusion),
}
