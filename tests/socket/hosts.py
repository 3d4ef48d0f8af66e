"""Hosts for tests: namespaces of the kernel, each with a network card, processes and a folder of local sockets of its own. They
all have the same name, as containers may."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from types import TracebackType

ISOLATE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")  # no process sees one of another host


class Hosts:
    """Some hosts on one switch. `within[i]` is what a command is put behind to run on the i-th."""

    def __init__(self, n: int) -> None:
        mark = f"gt{secrets.token_hex(4)}"
        self.names = [f"{mark}-{i}" for i in range(n)]
        self.switch = f"{mark}-switch"
        self.addresses = [f"10.77.0.{i + 1}" for i in range(n)]
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
                _ip("-n", name, "addr", "add", f"{self.addresses[i]}/24", "dev", "card")
                _ip("-n", name, "link", "set", "card", "up")
        except subprocess.CalledProcessError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in (self.switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        os.rmdir(self.folder)

    def traffic(self, host: int) -> int:
        """Bytes that passed this host's card."""
        where = "/sys/class/net/card/statistics/"
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
