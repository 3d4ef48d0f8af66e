"""Shared by the examples: the loss curve as a picture."""

from __future__ import annotations

from pathlib import Path


def draw(losses: dict[str, list[float]], path: Path, title: str) -> None:
    """Save the curves as a PNG, where matplotlib is installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print(f"no picture of the losses: pip install matplotlib to have {path}")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, values in losses.items():
        axes.plot(values, label=name, alpha=0.8)
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    print(f"the losses are drawn in {path}")
