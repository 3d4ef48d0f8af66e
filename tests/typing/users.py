"""A user's script for a type checker: `make check` reads this file with mypy, nobody runs it."""

from __future__ import annotations

from typing import assert_type

import gt


def script() -> None:
    x = gt.randn(2)
    assert_type(x, gt.Tensor)
    assert_type(x.exp(), gt.Tensor)
    assert_type(gt.exp(x), gt.Tensor)
    assert_type((x + 1).sum(dim=0), gt.Tensor)
    assert_type(2 * x @ gt.ones(2), gt.Tensor)
    gt.randn(2, requires_grad=True).sum().backward()
