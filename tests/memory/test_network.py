"""`gt doctor --network`: the measured links, and that the dispatcher keeps them."""

from __future__ import annotations

import pytest

import gt
from gt.client.here import here
from gt.errors import GTError
from gt.watch.network import LARGE, measure, pairs, seconds, table


def test_one_link_of_each_host_and_of_each_pair_of_hosts_is_measured() -> None:
    hosts = {0: "a", 1: "b", 2: "a", 3: "c", 4: "a"}
    assert pairs(hosts) == [(0, 2), (0, 1), (0, 3), (1, 3)]
    took = {(0, 2): 0.5, (0, 1): 4.0, (0, 3): 4.0, (1, 3): 2.0}
    links = measure(hosts, lambda a, b, elements: 1.0 + (took[a, b] if elements == LARGE else 0.0))
    assert links == [("a", "a", 8 * LARGE), ("a", "b", LARGE), ("a", "c", LARGE), ("b", "c", 2 * LARGE)]
    assert table(links, 8.0).splitlines()[1].startswith("a - b: 0.00 GB/s") and "counts as 8.0" in table(links, 8.0)


def test_a_pools_dispatcher_keeps_the_measured_bandwidths() -> None:
    with gt.testing.cluster(2, engine="numpy"):
        ask = here().session.ask
        [host] = set(ask("network")["hosts"].values())
        assert seconds(0, 1, 64) > 0
        before = ask("network")["crossing"]
        assert ask("network", [[host, host, 5e9]]) == before, "without a second host there is nothing to compare"
        assert [tuple(link) for link in ask("network")["links"]] == [(host, host, 5e9)]
        with pytest.raises(GTError, match="expected two hosts of this pool"):
            ask("network", [[host, "nobody", 5e9]])
