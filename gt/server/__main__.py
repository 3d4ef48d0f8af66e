"""`python -m gt.server -p PORT`: a dispatcher that clients and workers connect to."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gt import environment
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.serve import Server
from gt.dispatcher.stream import Watch
from gt.errors import ConfigError, ConnectionFailed
from gt.launch import Children, end_when_told, ending, follow_parent
from gt.transport.addresses import LOOPBACK, ipc_address, outward_address, own_folder
from gt.transport.auth import Keys, make_worker_key
from gt.transport.debug_output import show


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("-p", "--port", type=int, default=9000, help="TCP port, and the name of the local address (9000)")
    p.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    p.add_argument("--workers", type=int, default=0, help="also start this many workers on this host")
    p.add_argument("--backend", help="backend of those workers")
    p.add_argument("--key", default=environment.KEY.value(), help="clients and workers must have this key (GT_KEY)")
    p.add_argument("--worker-key", default=environment.WORKER_KEY.value(), help="and workers this, too (GT_WORKER_KEY)")
    p.add_argument(
        "--plain-collectives", action="store_true",
        help="have those workers let NCCL and Gloo carry bytes to other hosts, unencrypted (GT_PLAIN_COLLECTIVES)",
    )  # fmt: skip
    p.add_argument("--insecure", action="store_true", help="listen beyond this host without a key")
    p.add_argument("--auto", metavar="NAME", help=argparse.SUPPRESS)
    p.add_argument("--expect", type=int, default=0, help="place nothing before this many workers have come (--workers)")
    p.set_defaults(run=serve)
    return p


def add_parser(commands: Any) -> None:
    """`gt server`."""
    arguments(commands.add_parser("server", help="run a dispatcher that clients and workers connect to"))


def addresses(args: argparse.Namespace) -> list[str]:
    if args.auto:
        return [ipc_address(args.auto)]
    if args.host not in LOOPBACK and not args.key and not args.insecure:
        raise SystemExit(
            f"gt-server: {args.host} is reachable from other hosts: give --key (or GT_KEY), or --insecure to go without"
        )
    local, remote = ipc_address(str(args.port)), f"tcp://{'*' if args.host == '0.0.0.0' else args.host}:{args.port}"
    return [remote, local] if args.key or args.insecure else [local]  # TCP does not say whose process it is that connects


def keys(args: argparse.Namespace) -> Keys:
    """The users' key and the workers', which is made up where none is given."""
    try:
        given = Keys(args.key, args.worker_key).check()
    except ConnectionFailed as wrong:
        raise SystemExit(f"gt-server: {wrong}") from None
    if args.worker_key and not args.key:
        raise SystemExit("gt-server: GT_WORKER_KEY is set and GT_KEY is not: workers need both, users the second")
    return given if given.worker or not given.user else Keys(given.user, make_worker_key(args.port))


def host_for_workers(args: argparse.Namespace) -> str:
    """Where workers that are started here join. Where other users may be served, workers are to be reached by TCP, too."""
    if not (args.key or args.insecure):
        return "127.0.0.1"
    host = outward_address() if args.host == "0.0.0.0" else args.host
    return "tcp://127.0.0.1" if host in LOOPBACK else f"tcp://{host}"


def watcher() -> Watch | None:
    """What the environment asks to see of the stream."""
    path, shown = environment.INSTRUCTION_LOG.value(), environment.DEBUG_DISPATCHER.value()
    logs: list[Watch] = []
    if path or shown:
        from gt.watch.guard import Guarded
        from gt.watch.log import InstructionLog
    if path:
        try:
            logs.append(Guarded(InstructionLog(path), path, say))
        except OSError as wrong:
            raise SystemExit(f"gt-server: cannot write the instruction log {path}: {wrong.strerror}") from None
    if shown:
        logs.append(Guarded(InstructionLog(sys.stderr), "on standard error", say))

    def all_see(event: str, who: str, what: Any) -> None:
        for log in logs:
            log(event, who, what)

    return all_see if logs else None


def say(line: str) -> None:
    show(f"gt-server: {line}")


def serve(args: argparse.Namespace) -> int:
    try:
        remarks = environment.check([environment.SERVER])
    except ConfigError as wrong:
        raise SystemExit(f"gt-server: {wrong}") from None
    for remark in remarks if not args.auto else ():  # the client that starts a server by itself has said it
        say(remark)
    tell = say if environment.VERBOSE.value() else None
    if args.auto:
        follow_parent()
    told = end_when_told()
    try:
        at, known = addresses(args), keys(args)
        server = Server(at, Dispatcher(watcher(), tell, environment.AUTO_SHARD.value()), known)
    except OSError as taken:
        raise SystemExit(f"gt-server: cannot listen on port {args.port}: {taken}") from None
    if tell:
        tell(f"listening at {', '.join(at)}")
        if known.user and not args.worker_key:
            tell(f"workers of other hosts or users need GT_WORKER_KEY, which is in {own_folder()}/{args.port}.worker-key")
    server.expect(args.expect or args.workers)
    plain = {"GT_PLAIN_COLLECTIVES": "1"} if args.plain_collectives else {}
    with Children() as children:
        for i in range(args.workers):
            children.worker(f"{host_for_workers(args)}:{args.port}", known, args.backend, of=args.workers, rank=i, **plain)
        try:
            server.run(until=told)
        except (KeyboardInterrupt, SystemExit):
            pass
        finally:
            server.close()
            ending()
    return 0


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="gt-server", description="The dispatcher: clients and workers connect to it.")
    return serve(arguments(p).parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
