"""The default session: connected to the user's server, or started together with a dispatcher and workers."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import secrets
import threading
from collections.abc import Callable

from gt import backends, environment
from gt.client.scope import HERE
from gt.client.session import Session
from gt.clusters import pool_file
from gt.config import Config, read
from gt.errors import ArgumentError, ConnectionFailed, GTError
from gt.launch import SERVER_ENDS, STARTS, Children
from gt.transport import lanes
from gt.transport.addresses import address_of, await_listener, ipc_address, listens
from gt.transport.auth import Keys
from gt.transport.debug_output import See, show, trace
from gt.transport.messages import PRIORITIES, WEIGHTS
from gt.transport.zmq import ZmqLink

_lock = threading.RLock()
STARTING = 20.0  # seconds for started processes to load before the user is told that they are waited for
FEW_CORES = 2
STARTED = "the workers that this script started still load; GT_VERBOSE=1 shows how far they are"


class _Default:
    session: Session | None = None
    children: Children | None = None
    workers = 1
    config: Config | None = None  # the configuration of signals for new sessions
    share: tuple[float, str, int] = (1.0, "normal", 0)  # requested weight, priority and memory
    inherited: Session | None = None  # in a forked child, the parent's session
    of_its_own = True  # whether the parent's dispatcher was started with its session, not named by the user


_default = _Default()


def gpu_workers(n: int) -> None:
    """Set the number of workers that an implicitly started session has; call it before the first op."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"gpu_workers: expected a number of workers from 1 up, got {n!r}")
    with _lock:
        if _default.session is not None and n != _default.workers:
            raise RuntimeError(f"GT is running with {_default.workers} worker(s): call gt.gpu_workers before the first op")
        _default.workers = n


def session() -> Session:
    """The default session, begun if there is none."""
    with _lock:
        if _default.session is None or _default.session.closed:
            _default.session = _begin()
        return _default.session


class _ToCome:
    """In place of the default session before it begins."""

    @property
    def config(self) -> Config:
        if _default.config is None:
            path = environment.CONFIG.value()
            _default.config = Config(read(path) if path else None)
        return _default.config


def current() -> Session | _ToCome:
    """The default session, or None if it has not begun."""
    with _lock:
        return _default.session if _default.session is not None and not _default.session.closed else _ToCome()


def connect(
    server: str | None = None, key: str | None = None, timeout: float = 5.0, *, weight: float | None = None,
    priority: str | None = None, memory: str | int | None = None,
) -> Session:  # fmt: skip
    """Connect to the dispatcher at `host:port`, or to the pool of this name; by default to the pool of GT_POOL, or the only
    pool of this user. While several clients keep a worker busy, each gets device time by its `weight`, by default 1;
    `priority="interactive"` counts four times as much, `"batch"` a quarter. With `memory="20GB"` a tensor that would exceed
    this on one worker raises `gt.errors.OutOfMemory`."""
    if not server or ":" not in server:
        pool = pool_file.find(server or "")
        if not pool.server:
            raise ConnectionFailed(f"the dispatcher of pool {pool.name!r} has not started: see `gt status {pool.name}`")
        server, key = pool.server, key or pool.key
        remarks: list[str] = []  # a pool's processes have the environment of the process that started it
        seen = f"; pool {pool.name!r} was last seen there, and `gt status {pool.name}` asks its cluster again"
    else:
        remarks, seen = environment.without_effect(server), ""
    environment.warn([*environment.check([environment.CLIENT]), *remarks])
    with _lock:
        disconnect()
        shown = environment.KEY.value() if key is None else key
        Keys(shown).check()
        _default.share = _share(weight, priority, memory)
        try:
            link = ZmqLink(address_of(server, timeout), shown, timeout, _see(), *_default.share)
        except ConnectionFailed as wrong:
            raise ConnectionFailed(f"{wrong}{seen}") from None
        _default.session = _over(link)
        return _default.session


def _share(weight: float | None, priority: str | None, memory: str | int | None) -> tuple[float, str, int]:
    asked = environment.WEIGHT.value() if weight is None else float(weight)
    if not WEIGHTS[0] <= asked <= WEIGHTS[1]:
        raise ArgumentError(f"weight={asked:g}: expected a number from {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
    class_ = environment.PRIORITY.value() if priority is None else priority
    if class_ not in PRIORITIES:
        raise ArgumentError(f"priority={class_!r}: expected one of {', '.join(PRIORITIES)}")
    try:
        most = environment.MEMORY.value() if memory is None else environment.bytes_in(str(memory))
    except ValueError as wrong:
        raise ArgumentError(f"memory={wrong}") from None
    return asked, class_, most


def disconnect() -> None:
    """End the session: its tensors are freed, and the processes started for it end."""
    with _lock:
        if _default.session is not None:
            with contextlib.suppress(Exception):
                if not _default.session.lost:
                    _default.session.flush(wait=False)
                    if _default.children is not None and environment.INSTRUCTION_LOG.value():
                        _complete_log(_default.session)
            _default.session.close()
            _default.session = None
        HERE.scope = None
        if _default.children is not None:
            _default.children.close()
            _default.children = None
            backends.session_ended()


def _complete_log(session: Session) -> None:
    """Before the processes end: the client's last events, and the workers', which answer after all other work."""
    if session.reports is not None:
        session.reports.end()
    try:
        session.ask("stats", timeout=SERVER_ENDS)
    except GTError as wrong:
        environment.warn([f"the instruction log may lack the last lines: {wrong}"])


def is_connected() -> bool:
    return _default.session is not None and not _default.session.closed


def _see() -> See | None:
    return trace("gt", environment.DEBUG_CLIENT.value())


def _over(link: ZmqLink) -> Session:
    made = Session(link, link.name, tracing=environment.TRACE.value())
    made.workers = link.welcome.workers
    made.config = _ToCome().config
    link.start(made)
    made.auto_shard = environment.AUTO_SHARD.value()
    if made.config or made.auto_shard:
        made.configure(made.config.wire())
    return made


def _begin() -> Session:
    """Start a dispatcher and workers at a new address: a Unix socket that only this user can access, so that no key is
    needed."""
    shared = _rejoin()
    if shared is not None:
        return shared
    environment.warn(environment.check())
    backend = backends.asked_for()
    if backend is not None:
        backends.known_name(backend)  # raises for an unknown name here, not in a worker
    name = secrets.token_hex(8)
    address = ipc_address(name)
    children = Children()
    count = _default.workers
    server = children.auto_start(name, backend, count, count == 1 and one_process())
    try:
        _await_dispatcher(address, lambda: server.poll() is None)
        _default.share = _share(None, None, None)
        link = ZmqLink(address, "", STARTS, _see(), *_default.share)
        made = _over(link)
        made.notice, made.remedy = STARTING, STARTED
        backends.session_began()
        children.when_workers_end(link.give_up)
        if children.servers:
            link.how_it_ended = children.how_workers_ended
    except BaseException:  # also KeyboardInterrupt: the processes started for this session must end
        children.close()
        raise
    _default.children = children
    return made


def _await_dispatcher(address: str, lives: Callable[[], bool]) -> None:
    """Wait until the dispatcher listens, as long as its process lives."""
    if await_listener(address, lives, STARTING):
        return
    if lives():
        show(f"gt: the dispatcher that this script started still loads, after {STARTING:g} s")
    if not await_listener(address, lives, STARTS - STARTING):
        raise ConnectionFailed("the dispatcher could not be started: run `python -m gt.server` to see why")


def one_process() -> bool:
    """Whether a dispatcher that is started with one worker shares its process: where there are fewer cores than the processes
    would be, they would take turns on one, with cold caches each time."""
    asked = environment.ONE_PROCESS.value()
    few = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) <= FEW_CORES
    return lanes.supported() and (few if asked is None else asked)


def _rejoin() -> Session | None:
    """In a forked child: a new session with the parent's dispatcher; None if that dispatcher was started with the parent's
    session."""
    if _default.inherited is None:
        return None
    theirs = _default.inherited.link
    assert isinstance(theirs, ZmqLink)
    if _default.of_its_own and not listens(theirs.address):
        return None
    made = _over(ZmqLink(theirs.address, theirs.keys.user, 30, _see(), *_default.share))
    made.seed, made.draws = _default.inherited.seed, copy.copy(_default.inherited.draws)  # as in PyTorch's forked children
    return made


def _forked() -> None:
    """In a forked child: the session, its threads, its processes and the owners of its locks are the parent's."""
    global _lock
    _lock = threading.RLock()
    session, children = _default.session, _default.children
    _default.session = _default.children = HERE.scope = None
    if children is not None:
        children.abandon()
    if session is not None and isinstance(session.link, ZmqLink):
        parent = os.getppid()
        session.abandon(
            f"this tensor belongs to the process that forked this one ({parent}): make it here, or pass NumPy arrays"
        )
        session.link.abandon()
        _default.inherited, _default.of_its_own = session, children is not None


atexit.register(disconnect)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
