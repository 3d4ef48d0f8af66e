"""Hosts for tests: namespaces of the kernel, each with a network card, processes and a folder of local sockets of its own. They
all have the same name, as containers may."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

ISOLATE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")  # no process sees one of another host


class Hosts:
    """Some hosts on one switch. `within[i]` is the prefix of a command that runs on the i-th."""

    def __init__(self, n: int) -> None:
        mark = f"gt{secrets.token_hex(4)}"
        self.names = [f"{mark}-{i}" for i in range(n)]
        self.switch = f"{mark}-switch"
        self.addresses = [f"10.77.0.{i + 1}" for i in range(n)]
        self.ipv6 = [f"fd77::{i + 1}" for i in range(n)]
        self.folder = tempfile.mkdtemp(prefix=mark, dir="/tmp")  # looks empty to each of them
        own = ("sh", "-c", 'mount -t tmpfs -o mode=700 none "$0" && XDG_RUNTIME_DIR="$0" exec "$@"', self.folder)
        self.within = [("ip", "netns", "exec", name, *ISOLATE, *own) for name in self.names]

    def __enter__(self) -> Hosts:
        try:
            for name in (self.switch, *self.names):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "bridge", "up")
            for i, name in enumerate(self.names):
                _ip("-n", self.switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "card", "netns", name)
                _ip("-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
                self._plug(i)
        except subprocess.CalledProcessError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in (self.switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        os.rmdir(self.folder)

    def slow(self, delay: float, loss: float) -> subprocess.Popen[str]:
        """Give every host a cable that delays each frame by so many seconds and loses this share of them, in place of its own.
        The process that does it tells how many frames it delivered and lost once its standard input is closed."""
        for i in range(len(self.names)):
            _ip("-n", self.switch, "link", "del", f"port{i}")
        cables = Path(__file__).with_name("slow_cables.py")
        command = [sys.executable, str(cables), self.switch, str(delay), str(loss), *self.names]
        made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert made.stdout is not None and made.stdout.readline() == "ready\n"
        for i in range(len(self.names)):
            self._plug(i)
        return made

    def _plug(self, i: int) -> None:
        """Bring a host's card up, with its addresses."""
        name = self.names[i]
        _ip("-n", name, "addr", "add", f"{self.addresses[i]}/24", "dev", "card")
        _ip("-n", name, "addr", "add", f"{self.ipv6[i]}/64", "dev", "card", "nodad")
        _ip("-n", name, "link", "set", "card", "up")

    def second_card(self, one: int, other: int) -> tuple[str, str]:
        """A cable between two hosts, apart from the switch, and its ends' addresses."""
        near, far = self.names[one], self.names[other]
        _ip("-n", near, "link", "add", "second", "type", "veth", "peer", "name", "second", "netns", far)
        for name, address in ((near, "10.78.0.1"), (far, "10.78.0.2")):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "second")
            _ip("-n", name, "link", "set", "second", "up")
        return "10.78.0.1", "10.78.0.2"

    def behind(self, router: int, hidden: int, port: int) -> str:
        """Put a host behind another, which translates addresses and passes one port on. Why the kernel does not, or ""."""
        inner, outer = self.names[hidden], self.names[router]
        _ip("-n", inner, "link", "del", "card")
        self.second_card(router, hidden)
        _ip("-n", inner, "route", "add", "default", "via", "10.78.0.1")
        rules = (
            "add table ip nat",
            "add chain ip nat out { type nat hook postrouting priority 100 ; }",
            "add rule ip nat out oifname card masquerade",
            "add chain ip nat in { type nat hook prerouting priority -100 ; }",
            f"add rule ip nat in iifname card tcp dport {port} dnat to 10.78.0.2:{port}",
        )
        run = ("ip", "netns", "exec", outer)
        subprocess.run([*run, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True, capture_output=True)
        for rule in rules:
            done = subprocess.run([*run, "nft", rule], capture_output=True, text=True, check=False)
            if done.returncode:
                return done.stderr.strip()
        return ""

    def traffic(self, host: int, card: str = "card") -> int:
        """Bytes that passed this host's card."""
        where = f"/sys/class/net/{card}/statistics/"
        command = ["ip", "netns", "exec", self.names[host], "cat", where + "rx_bytes", where + "tx_bytes"]
        return sum(map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()))


def possible() -> bool:
    """Whether this user may make hosts here."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return False
    try:
        with Hosts(1) as made:
            subprocess.run([*made.within[0], "true"], check=True, capture_output=True)
    except (subprocess.CalledProcessError, OSError):
        return False
    return True


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)
