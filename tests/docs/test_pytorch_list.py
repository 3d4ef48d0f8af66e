"""docs/pytorch.md is current."""

from __future__ import annotations

import pytest
import torch

import gt
from tests.docs import pytorch_list


def test_the_page_lists_the_names_that_gt_lacks():
    written = pytorch_list.PAGE.read_text()
    if f"(PyTorch {torch.__version__.split('+')[0]})" not in written:
        pytest.skip("written for another PyTorch")
    assert written == pytorch_list.text(), "write it anew: python -m tests.docs.pytorch_list"


def test_methods_gt_has_are_callable_or_properties_as_in_pytorch():
    assert gt.zeros
    odd = []
    for name in pytorch_list.names():
        ours, theirs = getattr(gt.Tensor, name, None), getattr(torch.Tensor, name)
        if ours is not None and callable(theirs) != callable(ours) and name not in ("grad", "data", "requires_grad"):
            odd.append(name)
    assert not odd
