"""Messages from worker to worker, for collectives, and how workers know one another."""

from __future__ import annotations

import msgspec

from gt.transport.message import Message


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """How the others reach a worker in groups: `host:port` of its store, the GPU it computes on, and how those that may read
    its memory find it; "" for none. Without PyTorch it belongs to no group, and is reached by mail. `host` is GT_HOST, where
    somebody said which workers count as one host's."""

    store: str = ""
    gpu: str = ""
    memory: str = ""
    torch: bool = True
    host: str = ""


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """A worker, as others know it: `address` is where its tensors can be fetched, on one host, and `remote` from elsewhere.
    Workers also know one another's `token`, by which they tell a worker from a client, and how one is reached in groups, once
    it has said so."""

    index: int
    name: str
    address: str
    host: str
    device: str = ""
    token: str = ""
    reached: Reached | None = None
    remote: str = ""


class Piece(Message, frozen=True, tag=22):
    """From worker to worker, in the frame behind: what a collective of a client's has for it. `tag` is the id of the result
    it is for. Where there are no bytes, as they could not be made, the rest says why, as in Failed. `within` names the group
    whose hosts' first members talk to each other by it; 0 for mail of everybody's."""

    sender: int
    client: str
    tag: int
    why: str = ""
    error: str = ""
    tensor: int = 0
    within: int = 0


class InputFailed(Message, frozen=True, tag=24):
    """From worker to worker: the sender's part in the group's collective of this number could not be made; the rest says why,
    as in Failed. It takes part once all whom it concerns have answered Noted."""

    sender: int
    group: tuple[int, ...]
    number: int
    error: str
    text: str
    tensor: int


class StallQuery(Message, frozen=True, tag=25):
    """From worker to worker: the sender has long waited in the group's collective of this number. Who is there, too?"""

    sender: int
    group: tuple[int, ...]
    number: int


class Noted(Message, frozen=True, tag=26):
    """From worker to worker, to an InputFailed: it is known. To a StallQuery: the sender is there, too."""

    sender: int
    group: tuple[int, ...]
    number: int


class Ways(Message, frozen=True, tag=27):
    """From worker to worker: by which ways the sender can move bytes with all of this group. They use the best that all can.
    `near` are those members whose memory it reads, itself among them."""

    sender: int
    group: tuple[int, ...]
    ways: tuple[str, ...]
    near: tuple[int, ...] = ()


class Aborted(Message, frozen=True, tag=28):
    """From worker to worker: the group's collectives up to the one of this number are given up, why, as in Failed. The receiver
    says so with Noted, the number below zero."""

    sender: int
    group: tuple[int, ...]
    number: int
    error: str
    text: str
    tensor: int
