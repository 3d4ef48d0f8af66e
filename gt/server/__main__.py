"""`python -m gt.server -p PORT`: a dispatcher that clients and workers connect to."""

from __future__ import annotations

import argparse
import importlib.util
import secrets
import sys
import urllib.parse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gt import environment
from gt.clusters import pool_file
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.observers import Watch
from gt.dispatcher.serve import Server
from gt.dispatcher.users import Users
from gt.errors import ConfigError, ConnectionFailed, GTError
from gt.launch import Children, end_when_told, ending, follow_parent
from gt.lazy_import import LazyImport
from gt.server.users import UsersFile, read
from gt.transport.addresses import LOOPBACK, WORKER_KEY, free_port, ipc_address, outward_address, own_folder, with_port
from gt.transport.auth import SHORTEST, Keys, admit_users, make_worker_key, remove_worker_key
from gt.transport.debug_output import show
from gt.watch.log_file import LogThread, open_log

with_worker = LazyImport("gt.server.with_worker")
SUMMARY = "run a dispatcher, which clients and workers connect to"
EVERYWHERE = ("0.0.0.0", "::")  # all addresses of a host


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("-p", "--port", type=int, default=9000, help="TCP port, which names the local socket too (default: 9000)")
    p.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    p.add_argument("--workers", type=int, default=0, help="number of workers to start on this host as well (default: 0)")
    p.add_argument("--backend", help="backend of the workers that --workers starts")
    p.add_argument("--key", default=environment.KEY.value(), help="key that clients and workers must have (default: GT_KEY)")
    p.add_argument(
        "--worker-key", default=environment.WORKER_KEY.value(), help="key for workers alone (default: GT_WORKER_KEY)"
    )
    p.add_argument(
        "--plain-collectives", action="store_true",
        help="--workers: let NCCL and Gloo carry bytes to other hosts unencrypted (GT_PLAIN_COLLECTIVES)",
    )  # fmt: skip
    p.add_argument(
        "--config", metavar="POOL.YAML", help="file of the users: their keys, weights, memory and workers (docs/sharing.md)"
    )
    p.add_argument(
        "--dashboard",
        type=int,
        nargs="?",
        const=8265,
        default=0,
        metavar="PORT",
        help="port of the dashboard (8265 if left out)",
    )
    p.add_argument("--dashboard-host", default="127.0.0.1", help="address at which --dashboard listens (default: 127.0.0.1)")
    p.add_argument("--log-file", default="", metavar="PATH", help="file for the instruction log (default: GT_INSTRUCTION_LOG)")
    p.add_argument("--insecure", action="store_true", help="listen beyond this host without a key")
    p.add_argument("--pool", metavar="FILE", help="file of a pool: this server reads its keys and writes its address (`gt up`)")
    p.add_argument("--advertise", metavar="HOST", default="", help="address at which other hosts reach this one, for --pool")
    p.add_argument("--auto", metavar="NAME", help=argparse.SUPPRESS)
    p.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--with-worker", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--expect", type=int, default=0, help="workers to wait for before the first placement (default: --workers)")
    p.set_defaults(run=serve)
    return p


def add_parser(commands: Any) -> None:
    """`gt server`."""
    arguments(commands.add_parser("server", help=SUMMARY, description=SUMMARY))


def addresses(args: argparse.Namespace) -> list[str]:
    if args.auto:
        return [ipc_address(args.auto)]
    guarded = args.key or args.config
    if args.host not in LOOPBACK and not guarded and not args.insecure:
        raise SystemExit(
            f"gt-server: {args.host} is reachable from other hosts: give --key (GT_KEY), --config, or --insecure to go without"
        )
    local, remote = ipc_address(str(args.port)), f"tcp://{with_port('*' if args.host == '0.0.0.0' else args.host, args.port)}"
    return [remote, local] if guarded or args.insecure else [local]  # the kernel does not identify the user of a TCP connection


def users_file(args: argparse.Namespace) -> UsersFile | None:
    """The users, if each has a key of its own."""
    if not args.config:
        return None
    if args.key or args.insecure:
        raise SystemExit(
            "gt-server: --config gives each user a key of its own: neither --key (GT_KEY) nor --insecure goes with it"
        )
    try:
        return read(args.config)
    except ConfigError as wrong:
        raise SystemExit(f"gt-server: {wrong}") from None


def keys(args: argparse.Namespace) -> Keys:
    """The users' key and the workers' key, which is generated if none is given."""
    try:
        given = Keys(args.key, args.worker_key).check()
    except ConnectionFailed as wrong:
        raise SystemExit(f"gt-server: {wrong}") from None
    if args.worker_key and not args.key:
        raise SystemExit("gt-server: GT_WORKER_KEY is set and GT_KEY is not: workers need both, users the second")
    return given if given.worker or not given.user else Keys(given.user, make_worker_key(args.port))


def host_for_workers(args: argparse.Namespace) -> str:
    """The address at which workers started here join. If other users may connect, workers must be reachable by TCP too."""
    if not (args.key or args.config or args.insecure):
        return "127.0.0.1"
    host = outward_address() if args.host in EVERYWHERE else args.host
    host = "127.0.0.1" if host in LOOPBACK and host != "::1" else host
    return f"tcp://[{host}]" if ":" in host else f"tcp://{host}"


def join_pool(args: argparse.Namespace) -> None:
    """Take keys and port from a pool's file."""
    pool = pool_file.read(Path(args.pool))
    args.key, args.worker_key = pool.keys
    args.port = args.port or free_port()


def announce(args: argparse.Namespace) -> None:
    """Write this dispatcher's address to a pool's file."""
    host = args.advertise or (outward_address() if args.host in EVERYWHERE else args.host)
    pool_file.announce(Path(args.pool), with_port(host, args.port))


def logs(args: argparse.Namespace) -> list[LogThread]:
    """The requested instruction logs."""
    path = args.log_file or environment.INSTRUCTION_LOG.value()
    try:
        return open_log(path, environment.INSTRUCTION_LOG_SIZE.value() << 20, environment.DEBUG_DISPATCHER.value(), say)
    except OSError as wrong:
        raise SystemExit(f"gt-server: cannot write the instruction log {path}: {wrong.strerror}") from None


def watcher(logs: list[LogThread]) -> Watch | None:
    """One function that passes each message to all of them."""

    def all_see(event: str, who: str, what: Any) -> None:
        for log in logs:
            log(event, who, what)

    return all_see if logs else None


def say(line: str) -> None:
    show(f"gt-server: {line}")


def open_server(args: argparse.Namespace, tell: Callable[[str], None] | None, logged: list[LogThread]) -> tuple[Server, Keys]:
    """A listening dispatcher, and its logs."""
    try:
        if args.pool:
            join_pool(args)
        if not args.auto:
            remove_worker_key(args.port)
        named = users_file(args)
        at, known, users = addresses(args), named.keys if named else keys(args), named.known() if named else Users()
        admit_users(users.public)
        logged += logs(args)
        core = Dispatcher(watcher(logged), tell, environment.AUTO_SHARD.value(), users)
        core.tables.most_clients = environment.MAX_CLIENTS.value()
        if args.auto:  # its client sees its workers end, and bounds its reads by GT_WAIT: they may load for long
            core.tables.joins_within = float("inf")
        server = Server(at, core, known)
    except OSError as taken:
        raise SystemExit(f"gt-server: cannot listen on port {args.port}: {taken}") from None
    except GTError as wrong:
        raise SystemExit(f"gt-server: {wrong}") from None
    if tell:
        tell(f"listening at {', '.join(at)}")
        if known.user and not args.worker_key:
            tell(f"workers of other hosts or users need GT_WORKER_KEY, which is in {own_folder()}/{args.port}{WORKER_KEY}")
    server.expect(args.expect or args.workers)
    if args.pool:
        announce(args)
    return server, known


def start_dashboard(args: argparse.Namespace, children: Children, known: Keys) -> None:
    """The web page, in a process of its own."""
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise SystemExit("gt-server: the dashboard needs Starlette and uvicorn: pip install starlette uvicorn")
    if args.dashboard_host not in LOOPBACK and not known.guarded:
        raise SystemExit(
            f"gt-server: other hosts reach a dashboard at {args.dashboard_host}: give --key (or GT_KEY), or --config"
        )
    key = environment.DASHBOARD_KEY.value() or secrets.token_urlsafe(16)
    if len(key) < SHORTEST:
        raise SystemExit(f"gt-server: the key GT_DASHBOARD_KEY has {len(key)} characters: expected {SHORTEST} or more")
    options = ("--host", args.dashboard_host, "-p", str(args.dashboard))
    children.start("gt.watch.dashboard", ipc_address(args.auto or str(args.port)), *options, keys=known, GT_DASHBOARD_KEY=key)
    host = f"[{args.dashboard_host}]" if ":" in args.dashboard_host else args.dashboard_host
    shown = "" if environment.DASHBOARD_KEY.value() else f"?{urllib.parse.urlencode({'key': key})}"
    say(f"the dashboard is at http://{host}:{args.dashboard}/{shown}")


def serve(args: argparse.Namespace) -> int:
    try:
        remarks = environment.check([environment.SERVER])
    except ConfigError as wrong:
        raise SystemExit(f"gt-server: {wrong}") from None
    for remark in remarks if not args.auto else ():  # a client that starts a server by itself has shown it
        say(remark)
    logged: list[LogThread] = []

    def close_logs() -> None:
        for log in logged:
            log.close()

    if args.auto or args.follow:
        follow_parent(close_logs)
    told = end_when_told()
    server, known = open_server(args, say if environment.VERBOSE.value() else None, logged)
    plain = {"GT_PLAIN_COLLECTIVES": "1"} if args.plain_collectives else {}
    with Children() as children:
        if args.dashboard:
            start_dashboard(args, children, known)
        for i in range(args.workers):
            name = f"worker-{i}" if args.config else ""  # the name by which a worker, or its replacement, is given to users
            where = f"{host_for_workers(args)}:{args.port}"
            start = partial(children.worker, where, known, args.backend, args.workers, i, name, **plain)
            children.keep_worker(start, server.core.reports.tell, server.core.tables.has_joined)
        try:
            if args.with_worker:
                return int(with_worker.run(server, args.auto, args.backend, told, close_logs))
            server.run(until=told)
        except (KeyboardInterrupt, SystemExit):
            pass
        finally:
            server.close()
            close_logs()
            ending()
    return 0


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="gt-server", description=SUMMARY)
    return serve(arguments(p).parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
