"""Many clients in one process, for the cases in share.py: `python share_sessions.py SERVER FIRST CLIENTS READS`. Each has a
session of its own over real sockets. With reads, each reads so often, all at a time; without, each reads once and stays idle
until standard input ends. The worker answers all of them."""

from __future__ import annotations

import os
import sys
import threading

os.environ["GT_LOCAL_ANSWERS"] = "0"

import gt
from gt.client.default import _over
from gt.client.scope import HERE, Scope
from gt.transport.addresses import address_of
from gt.transport.zmq import ZmqLink

PATIENCE = 60.0


def session(server: str) -> Scope:
    return Scope(_over(ZmqLink(address_of(server, PATIENCE), "", PATIENCE)))


def check(me: float, n: int) -> None:
    found = (gt.full((3,), me) + n).tolist()
    if found != [me + n] * 3:
        raise SystemExit(f"client {me:g} read {found} in place of {me + n:g}")


def busy(scope: Scope, me: float, reads: int, done: list[int], place: int, least: list[int]) -> None:
    HERE.scope = scope
    for n in range(reads):
        check(me, n)
        done[place] += 1
    least.append(min(done))


def main() -> None:
    server, first, clients, reads = sys.argv[1], *map(int, sys.argv[2:])
    scopes = [session(server) for _ in range(clients)]
    for place, scope in enumerate(scopes):
        HERE.scope = scope
        check(1000.0 * (first + place), 0)
    print("ready", flush=True)
    for _ in sys.stdin:
        done, least = [0] * clients, list[int]()
        work = [
            threading.Thread(target=busy, args=(scope, 1000.0 * (first + place), reads, done, place, least))
            for place, scope in enumerate(scopes)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        print(sum(done), least[0], flush=True)
    for scope in scopes:
        scope.session.close()


if __name__ == "__main__":
    main()
