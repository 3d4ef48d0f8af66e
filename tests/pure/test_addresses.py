"""Addresses as they are written: hosts, ports, IPv6 in brackets."""

from __future__ import annotations

import socket

import pytest

from gt.transport.addresses import advertised, family, host_and_port, host_key, nobody, on_this_host, with_port


def test_an_ipv6_address_has_brackets_where_a_port_follows() -> None:
    assert host_and_port("tcp://[fd00::1]:9000") == ("fd00::1", "9000") and host_and_port("[::1]:9000") == ("::1", "9000")
    assert host_and_port("tcp://node1:9000") == ("node1", "9000") and host_and_port("10.0.0.1:1") == ("10.0.0.1", "1")
    assert with_port("fd00::1", 9000) == "[fd00::1]:9000" == with_port("[fd00::1]", "9000") and with_port("a", 1) == "a:1"
    assert family("fd00::1") == socket.AF_INET6 and family("10.0.0.1") == socket.AF_INET == family("localhost")


def test_loopback_is_this_host_in_both_families() -> None:
    for local in ("ipc:///x", "tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1", "tcp://127.1.2.3:4"):
        assert on_this_host(local)
    for other in ("tcp://10.0.0.1:1", "tcp://[fd00::1]:1", "tcp://*:1", "tcp://[::]:1"):
        assert not on_this_host(other)


def test_hosts_of_one_name_are_told_apart_by_where_they_are_reached() -> None:
    assert host_key("node", "") == host_key("node", "tcp://127.0.0.1:9") == host_key("node", "tcp://[::1]:9") == "node"
    assert host_key("node", "tcp://10.0.0.1:9") == host_key("node", "tcp://10.0.0.1:10") != host_key("node", "tcp://10.0.0.2:9")


@pytest.mark.parametrize(
    "text, found",
    [
        ("node", ("node", "")),
        ("node:7000", ("node", "7000")),
        ("10.0.0.1:7000", ("10.0.0.1", "7000")),
        ("fd00::1", ("fd00::1", "")),
        ("[fd00::1]", ("fd00::1", "")),
        ("[fd00::1]:7000", ("fd00::1", "7000")),
    ],
)
def test_an_advertised_address_may_have_a_port(text: str, found: tuple[str, str]) -> None:
    assert advertised(text) == found


@pytest.mark.parametrize("text", [":7000", "node:x", "node:0", "node:65536", "[]:1"])
def test_an_address_that_peers_cannot_use_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot advertise"):
        advertised(text)


def test_the_time_of_an_error_is_rounded() -> None:
    assert "within 10 s:" in nobody("tcp://203.0.113.1:9000", 9.99999)
