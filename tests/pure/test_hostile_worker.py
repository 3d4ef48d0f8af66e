"""A worker that means harm ends neither the dispatcher nor other workers by its messages, and changes no value of which it was
given no part."""

from __future__ import annotations

import pytest

from gt.testing import hostile_worker


@pytest.mark.filterwarnings("ignore::UserWarning")  # it may tell clients anything
def test_messages_of_a_hostile_worker_end_nobody_and_change_no_other_value() -> None:
    assert hostile_worker.fuzz(1, 4000) == 4000
