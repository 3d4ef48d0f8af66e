"""Messages between workers, for collectives, and the addresses of workers for one another."""

from __future__ import annotations

import msgspec

from gt.transport.message import Message


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """The addresses of a worker for groups: `host:port` of its store, its GPU, and the offer by which processes that may read
    its memory find it; "" for none. A worker without PyTorch is in no group, and is reached by mail. `host` is GT_HOST, which
    sets the workers that count as one host's."""

    store: str = ""
    gpu: str = ""
    memory: str = ""
    torch: bool = True
    host: str = ""


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """A worker, for other processes: `address` is where its tensors are fetched on the same host, and `remote` from other
    hosts. Workers also know one another's `token`, which distinguishes workers from clients, and the addresses for groups, once
    the worker has sent them. `small`: it computes ops on small tensors by `gt.small`, so that a client on its host may do it
    itself."""

    index: int
    name: str
    address: str
    host: str
    device: str = ""
    token: str = ""
    reached: Reached | None = None
    remote: str = ""
    small: bool = False


class Piece(Message, frozen=True, tag=22):
    """From worker to worker, with a frame: the sender's bytes for a collective of a client. `tag` is the id of the collective's
    result. If the bytes could not be computed, the other fields state the reason, as in Failed. `within` is the group in which
    the first members of hosts exchange these bytes; 0 for mail among all members."""

    sender: int
    client: str
    tag: int
    why: str = ""
    error: str = ""
    tensor: int = 0
    within: int = 0


class InputFailed(Message, frozen=True, tag=24):
    """From worker to worker: the sender's input of the group's collective of this number could not be computed; the other
    fields state the reason, as in Failed. The sender takes part once all receivers have answered Noted."""

    sender: int
    group: tuple[int, ...]
    number: int
    error: str
    text: str
    tensor: int


class StallQuery(Message, frozen=True, tag=25):
    """From worker to worker: the sender has waited for long in the group's collective of this number. Is the receiver in it
    too?"""

    sender: int
    group: tuple[int, ...]
    number: int


class Noted(Message, frozen=True, tag=26):
    """From worker to worker, the answer to an InputFailed: it is noted. To a StallQuery: the sender is in the collective
    too."""

    sender: int
    group: tuple[int, ...]
    number: int


class Ways(Message, frozen=True, tag=27):
    """From worker to worker: the transports by which the sender can exchange bytes with all members of this group. They use the
    fastest that all have. `near` are the members whose memory it can read, including itself."""

    sender: int
    group: tuple[int, ...]
    ways: tuple[str, ...]
    near: tuple[int, ...] = ()


class Aborted(Message, frozen=True, tag=28):
    """From worker to worker: the group's collectives up to this number are given up, with the reason, as in Failed. The
    receiver answers Noted, with the negative number."""

    sender: int
    group: tuple[int, ...]
    number: int
    error: str
    text: str
    tensor: int
