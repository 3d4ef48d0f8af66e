"""`torch.onnx`, refused: a GT tensor has no graph of PyTorch's operators to write."""

from __future__ import annotations

from typing import Any, NoReturn


def export(model: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        "GT does not write ONNX: save the weights (gt.save(model.state_dict(), 'model.safetensors')), load them into the same "
        "model in PyTorch (safetensors.torch.load_file) and export it from there"
    )


dynamo_export = export
__all__ = ["dynamo_export", "export"]
