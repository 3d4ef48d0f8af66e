"""Rotary position tables, as Hugging Face configs describe them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

KNOWN = ("default", "linear", "llama3")


def rotary_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """One dict for both spellings: rope_theta with rope_scaling, and rope_parameters."""
    settings = {"rope_theta": config.get("rope_theta") or 10000.0}
    for key in ("rope_scaling", "rope_parameters"):
        settings |= dict(config.get(key) or {})
    settings["rope_type"] = settings.get("rope_type") or settings.get("type") or "default"
    if settings["rope_type"] not in KNOWN:
        raise ValueError(f"rope_type {settings['rope_type']!r} is not supported: known are {', '.join(KNOWN)}")
    partial = settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ValueError(f"partial_rotary_factor {partial} is not supported: only 1.0 is")
    return settings


def frequencies(settings: Mapping[str, Any], head_dim: int) -> np.ndarray:
    """Radians per position, (head_dim / 2,)."""
    powers = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    base: np.ndarray = (1.0 / np.float32(settings["rope_theta"]) ** powers).astype(np.float32)
    if settings["rope_type"] == "default":
        return base
    factor = settings["factor"]
    if settings["rope_type"] == "linear":
        return base / np.float32(factor)
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    original = settings["original_max_position_embeddings"]
    wavelength = 2 * math.pi / base
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / factor + smooth * base
    scaled = np.where(wavelength > original / low, base / factor, base)
    medium = (wavelength >= original / high) & (wavelength <= original / low)
    return np.where(medium, blended, scaled).astype(np.float32)


def rotary_tables(settings: Mapping[str, Any], head_dim: int, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, each (positions, head_dim / 2)."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies(settings, head_dim)
    return np.cos(angles), np.sin(angles)
