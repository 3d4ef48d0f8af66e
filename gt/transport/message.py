"""The root of all messages, for the files that define them."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    """A typed struct, written as a msgpack array."""
