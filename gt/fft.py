"""`gt.fft`: Fourier transforms under PyTorch's names."""

from __future__ import annotations

from typing import Any

from gt.client.functions.fourier import FFT

__all__ = sorted(FFT)


def __getattr__(name: str) -> Any:
    if name not in FFT:
        raise AttributeError(f"module 'gt.fft' has no attribute {name!r}: known are {', '.join(sorted(FFT))}")
    return FFT[name]


def __dir__() -> list[str]:
    return sorted(FFT)
