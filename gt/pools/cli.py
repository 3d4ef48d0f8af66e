"""`gt up`, `gt status`, `gt scale` and `gt down`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from gt.client.default import connect, disconnect
from gt.clusters import CLASSES, pool_file
from gt.clusters import cluster as cluster_of
from gt.errors import GTError
from gt.pools.pool import RunningPool, open_pool

COMMON = (
    "cluster",
    "workers",
    "name",
    "backend",
    "dry_run",
    "run",
)  # arguments of every `gt up`; the rest are the cluster's options


def add_parser(commands: Any) -> None:
    up = commands.add_parser(
        "up", help="start a pool: a dispatcher and workers", description="Start a pool: a dispatcher and workers."
    )
    clusters = up.add_subparsers(required=True, metavar="CLUSTER", dest="cluster")
    for name in CLASSES:
        found = cluster_of(name)
        p = clusters.add_parser(name, help=found.summary, description=f"Start a pool: {found.summary}.")
        _common(p)
        found.arguments(p)
        p.set_defaults(run=start)
    for name, run, text in (
        ("status", status, "show a pool and the states of its processes"), ("down", down, "end a pool"),
    ):  # fmt: skip
        p = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        p.add_argument("pool", nargs="?", default="", help="name of the pool (default: GT_POOL, or the only pool)")
        p.set_defaults(run=run)
        if name == "status":
            p.add_argument("--json", action="store_true", help="print one JSON object")
            p.add_argument(
                "--show-key", action="store_true", help="print the address and the key, which clients on other hosts need"
            )
    p = commands.add_parser(
        "scale", help="change the number of workers of a pool", description="Start or end workers of a pool."
    )
    p.add_argument("workers", type=int, help="number of workers that the pool is to have")
    p.add_argument("pool", nargs="?", default="", help="name of the pool (default: GT_POOL, or the only pool)")
    p.set_defaults(run=scale)


def _common(p: argparse.ArgumentParser) -> None:
    p.add_argument("--workers", type=int, default=1, help="number of workers (default: 1)")
    p.add_argument("--name", default="", help="name of the pool (default: a random one)")
    p.add_argument("--backend", default="", help="backend of the workers: a name that `gt backends` lists")
    p.add_argument("--gpus-per-worker", type=int, default=None, help="GPUs of each worker, 0 or 1")
    p.add_argument("--plain-collectives", action="store_true", help="let NCCL and Gloo carry bytes between hosts, unencrypted")
    p.add_argument(
        "--max-workers",
        type=int,
        help="number of workers up to which the pool grows while queues are long; idle workers are ended again",
    )
    p.add_argument("--min-workers", type=int, help="number of workers that --max-workers keeps at least (default: 1)")
    p.add_argument(
        "--dry-run", action="store_true", help="slurm and k8s: print the jobs that would be submitted, and start nothing"
    )


def start(args: argparse.Namespace) -> int:
    options = {k: v for k, v in vars(args).items() if k not in COMMON and v not in (None, False, "")}
    record = pool_file.make(args.name, args.cluster, args.workers, args.backend, **options)
    made = RunningPool(record, cluster_of(args.cluster))
    if args.dry_run:
        made.cluster.check(record)
        print(made.cluster.manifests(record), end="")
        return 0
    made.up()
    where = f" at {made.server}" if made.server else ", whose dispatcher has yet to start"
    print(f"pool {made.name} of {record.workers} workers{where}: use it by gt.connect({made.name!r})")
    return 0


def status(args: argparse.Namespace) -> int:
    pool = open_pool(args.pool)
    pool.locate()
    if args.show_key:
        print(f"GT_KEY={pool.record.key}\nserver={pool.server}")
        return 0
    members, joined = pool.members(), joined_workers(pool)
    if args.json:
        print(json.dumps({
            "name": pool.name, "cluster": pool.record.cluster, "server": pool.server, "workers": pool.record.workers,
            "release": pool.record.release, "members": [dataclasses.asdict(m) for m in members], "joined": joined,
        }))  # fmt: skip
        return 0
    print(f"pool {pool.name} ({pool.record.cluster}) at {pool.server or 'no address yet'}: {pool.record.workers} workers asked")
    for member in members:
        print(f"  {member.name:24} {member.state:10} {member.where}{'  ' + member.log if member.log else ''}")
    if isinstance(joined, str):
        print(f"  its dispatcher cannot be asked: {joined}")
    else:
        print(f"  {len(joined)} workers have joined: {', '.join(sorted(joined)) or 'they are starting'}")
    return 0


def joined_workers(pool: RunningPool) -> dict[str, Any] | str:
    """The statistics of the joined workers, or the reason why the dispatcher does not answer."""
    if not pool.server:
        return "it has not started"
    try:
        session = connect(pool.name)  # statistics wait for workers that are still starting
        return session.ask("stats", timeout=10.0)["workers"] if session.workers else {}
    except GTError as wrong:
        return str(wrong)
    finally:
        disconnect()


def scale(args: argparse.Namespace) -> int:
    pool = open_pool(args.pool)
    pool.scale(args.workers)
    print(f"pool {pool.name}: {args.workers} workers")
    return 0


def down(args: argparse.Namespace) -> int:
    pool = open_pool(args.pool)
    pool.down()
    print(f"pool {pool.name} has ended")
    return 0
