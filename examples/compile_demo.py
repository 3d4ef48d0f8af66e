"""A stretch of a program is compiled because of its signal's setting: `python examples/compile_demo.py`.

The same steps run first as they are. Compiling goes on in the background, so the demo waits for it before it measures."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import gt

CONFIG = Path(__file__).parent / "config_compile.yaml"


def forward(x: gt.Tensor, weights: list[gt.Tensor]) -> gt.Tensor:
    """Layers with long tails of small ops, which a compiler makes one kernel of."""
    for w in weights:
        x = x @ w  # (batch, width)
        x = (x * 0.5).tanh() * 1.2 + (x - 0.1).sigmoid() * x.exp().log().abs().sqrt()
        x = x / (1.0 + x * x).sqrt()
    return x.mean()


def timed(signal: str, x: gt.Tensor, weights: list[gt.Tensor], steps: int) -> tuple[float, float]:
    """Milliseconds a step, and the last result."""
    began = time.perf_counter()
    for _ in range(steps):
        with gt.signal.context(signal):
            found = forward(x, weights)
        value = found.item()
    return (time.perf_counter() - began) / steps * 1e3, value


def wait_for_compiler(x: gt.Tensor, weights: list[gt.Tensor], seconds: float = 120.0) -> dict:
    end = time.monotonic() + seconds
    while True:
        timed("mlp", x, weights, 5)
        [worker] = gt.debug.get_worker_stats().values()
        done = worker["replay"]
        if done["compiled_executions"] or done["fallbacks"] or time.monotonic() > end or worker["engine"] != "pytorch":
            return done
        time.sleep(0.5)


def main() -> None:
    gt.load_config(CONFIG)
    gt.manual_seed(0)
    x, weights = gt.randn(64, 256), [gt.randn(256, 256) / 16.0 for _ in range(4)]
    timed("embedding", x, weights, 5)
    before, plain = timed("embedding", x, weights, 30)
    print(f"not compiled: {before:.2f} ms a step, result {plain:.6f}")

    done = wait_for_compiler(x, weights)
    after, compiled = timed("mlp", x, weights, 30)
    print(f"compiled:     {after:.2f} ms a step, result {compiled:.6f} ({before / after:.1f} times as fast)")
    print(f"it took {done['compile_seconds']:.1f} s to compile; fallbacks: {done['fallbacks'] or 'none'}")
    np.testing.assert_allclose(compiled, plain, rtol=1e-4)
    gt.debug.print_worker_stats()


if __name__ == "__main__":
    main()
