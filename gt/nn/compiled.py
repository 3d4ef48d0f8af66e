"""A module whose calls are captured and replayed (`gt.compile(model)`), and which is a module still."""

from __future__ import annotations

from typing import Any

from gt.nn.module import Module


class CompiledModule(Module):
    """Parameters, state and modes are those of the module inside, under PyTorch's name for it: `_orig_mod`."""

    def __init__(self, module: Module, call: Any) -> None:
        super().__init__()
        self._orig_mod = module
        self._call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def train(self, mode: bool = True) -> Module:
        self._orig_mod.train(mode)
        self.training = mode
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("_orig_mod", "_call"):
            raise AttributeError(name)
        try:
            return getattr(self._orig_mod, name)
        except AttributeError:
            return getattr(self._call, name)  # counts of captures and replays
