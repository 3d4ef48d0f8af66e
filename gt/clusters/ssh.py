"""A pool over ssh: the dispatcher on this host, workers on the hosts listed in a file. A worker reads its pool's address and
keys from its standard input, so that they appear neither on a command line nor on the other host's disk."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gt.clusters import processes
from gt.clusters.cluster import ENDED, RUNNING, Cluster, Member
from gt.clusters.pool_file import Pool
from gt.errors import ConfigError, ConnectionFailed

ANSWER_TIMEOUT = 60.0  # seconds for a host's answer
UNKNOWN = "unknown"
LOGS = '"${XDG_STATE_HOME:-$HOME/.local/state}/gt/pools/$NAME.logs"'


@dataclass(frozen=True)
class Host:
    """A line of the file of hosts: `[user@]host [slots=N]`."""

    name: str
    slots: int = 1


def read_hosts(text: str, where: str = "hosts") -> list[Host]:
    """The hosts in a file: one per line; `#` begins a comment."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        settings = dict(word.partition("=")[::2] for word in words[1:])
        if set(settings) - {"slots"} or not settings.get("slots", "1").isdecimal() or words[0].startswith("-"):
            raise ConfigError(f"{where}, line {number}: {line.strip()!r}: expected `host` or `host slots=4`")
        found.append(Host(words[0], int(settings.get("slots", "1"))))
    if not found:
        raise ConfigError(f"{where} lists no host: expected a line `host` or `host slots=4` for each")
    return found


def record_for(pool: Pool) -> bytes:
    """The part of a pool's record that a worker on another host needs."""
    kept = Pool(name=pool.name, cluster=pool.cluster, key=pool.key, worker_key=pool.worker_key, server=pool.server)
    return msgspec.json.encode(kept) + b"\n"


class SSH(Cluster):
    name = "ssh"
    summary = "hosts listed in a file, reached by ssh"
    follows = True

    def arguments(self, p: argparse.ArgumentParser) -> None:
        p.add_argument("hosts", help="file with a line `[user@]host [slots=N]` for each host")
        p.add_argument("--ssh", default="", help="ssh command with its options (default: ssh -o BatchMode=yes)")
        p.add_argument("--python", default="", help="path of Python on the hosts (default: the path of this Python)")
        p.add_argument("--pythonpath", default="", help="folder of GT on the hosts (default: its folder on this host)")
        p.add_argument("--advertise", default="", help="address at which the hosts reach this one")
        p.add_argument("--port", type=int, help="port of the dispatcher (default: a free one)")

    def hosts(self, pool: Pool) -> list[Host]:
        path = Path(str(pool.options.get("hosts", "")))
        try:
            return read_hosts(path.read_text(), str(path))
        except OSError as wrong:
            raise ConfigError(f"cannot read the hosts of {path}: {wrong.strerror}") from None

    def check(self, pool: Pool) -> None:
        super().check(pool)
        self.hosts(pool)

    def start(self, pool: Pool, follow: bool = False) -> None:
        pool.options["hosts"] = os.path.abspath(str(pool.options["hosts"]))
        processes.start_dispatcher(pool, host="0.0.0.0", follow=follow)
        self.grow(pool, pool.workers)

    def grow(self, pool: Pool, count: int) -> None:
        for _ in range(count):
            host = self._emptiest(pool)
            member = f"{pool.name}-{pool.started}"
            pool.started += 1
            taken = {m["rank"] for m in pool.members.values() if m["host"] == host}
            rank = next(r for r in range(len(taken) + 1) if r not in taken)
            printed = self._shell(pool, host, self._start_script(pool, member, rank), record_for(pool))
            if not printed.strip().isdecimal():
                raise ConnectionFailed(f"{host} did not start worker {member}: its shell printed {printed.strip()!r}")
            pool.members[member] = {"host": host, "rank": rank, "pid": int(printed)}

    def _emptiest(self, pool: Pool) -> str:
        """The first host with the most free slots; when all slots are taken, workers share them."""
        held = [m["host"] for m in pool.members.values()]
        return max(self.hosts(pool), key=lambda h: (h.slots - held.count(h.name)) / h.slots).name

    def _start_script(self, pool: Pool, member: str, rank: int) -> str:
        """The shell script that starts a worker and prints its pid. `printf` is a shell builtin, so no command line has the
        key."""
        python = str(pool.options.get("python") or sys.executable)
        path = str(pool.options.get("pythonpath") or processes.ROOT)
        env = {"LOCAL_RANK": str(rank), "PYTHONPATH": path, "GT_VERBOSE": "1"}
        if pool.options.get("gpus_per_worker") == 0:
            env["CUDA_VISIBLE_DEVICES"] = ""
        command = [python, "-P", "-m", "gt.worker", "--pool", "-", *processes.worker_options(pool, member)]
        setting = " ".join(f"{k}={shlex.quote(v)}" for k, v in env.items())
        return (
            f"umask 077; NAME={shlex.quote(pool.name)}; mkdir -p {LOGS} && IFS= read -r record && "
            f"{{ printf '%s\\n' \"$record\" | {setting} nohup setsid {shlex.join(command)} "
            f'>>{LOGS}/{shlex.quote(member)}.log 2>&1 & echo "$!"; }}'
        )

    def _shell(self, pool: Pool, host: str, script: str, data: bytes = b"") -> str:
        ssh = shlex.split(str(pool.options.get("ssh") or "ssh -o BatchMode=yes"))
        try:
            done = subprocess.run([*ssh, host, script], input=data, capture_output=True, timeout=ANSWER_TIMEOUT)
        except FileNotFoundError:
            raise ConfigError(f"cannot run {ssh[0]!r}: is it installed?") from None
        except subprocess.TimeoutExpired:
            raise ConnectionFailed(f"{host} did not answer within {ANSWER_TIMEOUT:g} s") from None
        if done.returncode:
            raise ConnectionFailed(f"{shlex.join([*ssh, host])} failed: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode(errors="replace")

    def _by_host(self, members: dict[str, Any]) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for name, member in members.items():
            found.setdefault(member["host"], {})[name] = member["pid"]
        return found

    def _for_each_running(self, pids: dict[str, int], then: str) -> str:
        """A shell script that runs `then` for each worker that still runs; another process with a reused pid is skipped."""
        ours = " ".join(f"{pid}:{shlex.quote(name)}" for name, pid in pids.items())
        return (
            f"for each in {ours}; do pid=${{each%%:*}}; name=${{each#*:}}; "
            f'case "$(ps -o args= -p "$pid" 2>/dev/null)" in *"--id $name"*) {then};; esac; done'
        )

    def _signal(self, pool: Pool, members: dict[str, Any]) -> None:
        """Send SIGTERM to workers, wait while they drain, and kill the workers that take too long."""
        wait = (
            f'n=0; while kill -0 "$pid" 2>/dev/null && [ $n -lt {int(processes.DRAINED * 10)} ]; do sleep 0.1; n=$((n+1)); done'
        )
        for host, pids in self._by_host(members).items():
            script = (
                self._for_each_running(pids, 'kill -TERM "$pid"')
                + "; "
                + self._for_each_running(pids, f'{wait}; kill -KILL "$pid" 2>/dev/null')
            )
            self._shell(pool, host, script + "; true")

    def shrink(self, pool: Pool, count: int) -> None:
        gone = {name: pool.members.pop(name) for name in list(pool.members)[len(pool.members) - count :]}
        self._signal(pool, gone)

    def watch(self, pool: Pool) -> list[Member]:
        state = RUNNING if processes.alive(pool.run) else ENDED
        found = [Member("dispatcher", state, f"pid {pool.run['pid']} here", pool.run["log"])]
        for host, pids in self._by_host(pool.members).items():
            try:
                there = self._shell(pool, host, self._for_each_running(pids, 'echo "$name"') + "; true").split()
                states = {name: RUNNING if name in there else ENDED for name in pids}
            except ConnectionFailed:
                states = dict.fromkeys(pids, UNKNOWN)
            found += [Member(name, states[name], f"{host}, pid {pid}") for name, pid in pids.items()]
        return found

    def stop(self, pool: Pool) -> None:
        """End the dispatcher, on which its workers end by themselves, then send SIGTERM to workers that still run."""
        processes.end([pool.run] if pool.run else [])
        self._signal(pool, pool.members)
        pool.members, pool.run = {}, {}
