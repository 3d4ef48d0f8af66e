"""`python slow_cables.py SWITCH DELAY LOSS HOST...`: cables that delay every frame and lose some, for kernels without netem.

Each HOST and the SWITCH are network namespaces. A cable is a pair of TAP devices, `card` on the host and `slowN` on the bridge
of the switch, between which this process copies frames. It writes "ready", runs until its standard input ends, and then writes
the number of frames that it delivered and the number that it lost."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
FRAME = 1 << 16


def tap(namespace: str, name: str) -> int:
    """The descriptor of a new TAP device in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    made = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return made


def copy_frames(ends: dict[int, int], delay: float, loss: float) -> tuple[int, int]:
    """Copy frames between the ends of cables until standard input ends."""
    chance, poll = random.Random(0), select.poll()
    waiting: list[tuple[float, int, int, bytes]] = []  # by the time of their delivery, in the order in which they came
    delivered = lost = 0
    for fd in (0, *ends):
        poll.register(fd, select.POLLIN)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) * 1000 if waiting else None
        for fd, _ in poll.poll(pause):
            if fd == 0:
                return delivered, lost
            frame = os.read(fd, FRAME)
            if chance.random() < loss:
                lost += 1
            else:
                heapq.heappush(waiting, (time.monotonic() + delay, delivered + len(waiting), ends[fd], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, fd, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the card is not up yet, or its queue is full
                os.write(fd, frame)
                delivered += 1


def main(switch: str, delay: str, loss: str, *hosts: str) -> None:
    ends: dict[int, int] = {}
    for i, host in enumerate(hosts):
        card, port = tap(host, "card"), tap(switch, f"slow{i}")
        ends[card], ends[port] = port, card
        subprocess.run(["ip", "-n", switch, "link", "set", f"slow{i}", "master", "bridge", "up"], check=True)
    print("ready", flush=True)
    print(*copy_frames(ends, float(delay), float(loss)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
