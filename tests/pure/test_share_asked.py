"""The share and memory of a worker that a script asks for: by arguments of `gt.connect`, or else by variables."""

from __future__ import annotations

import pytest

from gt.client.default import _share
from gt.errors import ArgumentError


def test_a_setting_without_an_argument_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _share(None, None, None) == (1.0, "normal", 0)
    for name, value in (("WEIGHT", "2.5"), ("PRIORITY", "batch"), ("MEMORY", "20GB")):
        monkeypatch.setenv(f"GT_{name}", value)
    assert _share(None, None, None) == (2.5, "batch", 20 << 30)
    assert _share(3, "interactive", "1.5MB") == (3.0, "interactive", 3 << 19)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((0.001, None, None), r"weight=0\.001: expected a number from 0\.01 to 100"),
        ((None, "urgent", None), "priority='urgent': expected one of normal, interactive, batch"),
        ((None, None, "much"), "memory='much' is no size"),
    ],
)
def test_an_impossible_setting_is_refused_on_the_user_s_line(asked: tuple, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        _share(*asked)
