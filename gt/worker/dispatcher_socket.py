"""A worker's socket to its dispatcher, and when that has ended."""

from __future__ import annotations

from typing import Any

import zmq

from gt.transport.addresses import on_this_host
from gt.transport.auth import Keys, reach
from gt.transport.messages import Join, encode
from gt.transport.sockets import Ends, first_word, how_it_ended, open_socket


class DispatcherSocket:
    def __init__(self, address: str, keys: Keys, token: str) -> None:
        self.address, self.keys = address, keys
        self.socket = open_socket(zmq.DEALER, token.encode())
        self.ends = Ends(self.socket)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)

    def join(self, join: Join, timeout: float) -> Any:
        """Connect and join: the frame of the dispatcher's first word."""
        reach(self.socket, self.address, self.keys)
        self.send(join)
        return first_word(self.socket, self.ends, self.address, timeout)

    def send(self, message: Any) -> None:
        self.socket.send(encode(message))

    def receive(self) -> Any:
        """The next message's frame, or None where none has come."""
        return self.socket.recv() if self.poller.poll(0) else None

    def how_it_ended(self) -> str:
        """Why the connection ended; nothing where both ends were on this host."""
        return "" if on_this_host(self.address) else f"the dispatcher at {self.address} {how_it_ended(self.address)}"

    def close(self) -> None:
        self.ends.close()
        self.socket.close()
