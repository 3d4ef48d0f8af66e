"""Whole programs in one thread, on each engine, with memory that is shared and memory that is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gt
from gt.testing import Cluster

KINDS = [("numpy", True), ("numpy", False), ("pytorch", True), ("pytorch", False)]


@pytest.fixture(params=KINDS, ids=[f"{e}-{'shared' if s else 'uploaded'}" for e, s in KINDS])
def pool(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A dispatcher, a worker and a session; at the end nothing is left on the worker that nobody holds."""
    engine, shares = request.param
    with gt.testing.cluster(engine=engine, shares=shares) as made:
        yield made
