"""A worker that means harm ends neither the dispatcher nor other workers by what it says, and changes no value of which it was
given no part."""

from __future__ import annotations

import pytest

from gt.testing import hostile_worker


@pytest.mark.filterwarnings("ignore::UserWarning")  # it may tell clients what it likes
def test_what_a_hostile_worker_says_ends_nobody_and_changes_no_value_that_it_has_no_part_in() -> None:
    assert hostile_worker.fuzz(1, 4000) == 4000
