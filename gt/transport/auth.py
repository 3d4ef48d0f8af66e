"""Keys. People share one key; from it come the CURVE key pairs of sockets, so that whoever lacks it can neither connect nor
read what passes. Only TCP is guarded: what stays on one host stays plain."""

from __future__ import annotations

import errno
import hashlib
import os
from functools import cache

import zmq
from zmq.utils import z85

from gt.transport.addresses import NAMES, listens, sweep
from gt.transport.sockets import notice_silence


@cache
def pair(key: str, side: str) -> tuple[bytes, bytes]:
    """The public and the secret key of one side. The hash is slow on purpose: a key may be a short word."""
    secret = hashlib.scrypt(key.encode(), salt=b"gt curve " + side.encode(), n=1 << 14, r=8, p=1, dklen=32)
    text = z85.encode(secret)
    return zmq.curve_public(text), text


def guarded(address: str, key: str) -> bool:
    return bool(key) and address.startswith("tcp://")


def listen(socket: zmq.Socket, address: str, key: str = "") -> str:
    """Bind, guarded where the address is reachable by TCP and there is a key. Gives the address with its port."""
    if guarded(address, key):
        socket.curve_publickey, socket.curve_secretkey = pair(key, "server")
    socket.setsockopt(zmq.CURVE_SERVER, int(guarded(address, key)))
    notice_silence(socket, address)
    try:
        if address.startswith("ipc://"):
            _only_this_user(socket, address)
        socket.bind(address)
    except zmq.ZMQError as taken:
        raise OSError(taken.errno, f"{taken.strerror}", address) from None
    if address.startswith("ipc://"):
        NAMES.hold(address.removeprefix("ipc://"))
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.rstrip(b"\0").decode()


def _only_this_user(socket: zmq.Socket, address: str) -> None:
    """The folder keeps others out, and libzmq asks the kernel whose process it is that connects (SO_PEERCRED)."""
    sweep()
    if listens(address):  # binding would take the name from whoever has it
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), address)
    socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())


def reach(socket: zmq.Socket, address: str, key: str = "") -> None:
    """Connect to an address that `listen` bound. The listener knows us to have the key since its own public key, which it
    tells nobody, is derived from it."""
    if guarded(address, key):
        socket.curve_serverkey = pair(key, "server")[0]
        socket.curve_publickey, socket.curve_secretkey = pair(key, "client")
    notice_silence(socket, address)
    socket.connect(address)
