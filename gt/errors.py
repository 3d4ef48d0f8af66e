"""Every exception GT raises of its own. Mistakes in arguments raise Python's ValueError, TypeError and IndexError; those in the
arguments of ops are RuntimeErrors as well, since scripts written for PyTorch catch these."""

from __future__ import annotations


class GTError(RuntimeError):
    """The root of GT's exceptions other than those of wrong arguments."""


class ConnectionFailed(GTError):
    """No dispatcher answered, or the one there refused."""


class SessionLost(GTError):
    """The dispatcher went away: nothing of this session can be read any more."""


class WorkerLost(GTError):
    """A worker went away with the tensor that was asked for, or with something it was made from."""


class RemoteError(GTError):
    """A kernel failed on a worker. The message carries the user's line and the worker's traceback."""


class OutOfMemory(RemoteError):
    """A worker's device had no room for a tensor."""


OutOfMemoryError = OutOfMemory  # PyTorch's name for it


class LinAlgError(RemoteError):
    """A matrix is singular or not positive definite, or an iteration did not converge."""


class RemoteIndexError(RemoteError, IndexError):
    """An element or axis that is not there: found on a worker, where the values are."""


class NotForComplex(TypeError, NotImplementedError):
    """An op that complex numbers do not have, such as one that orders them."""


class ProtocolError(GTError):
    """A message that cannot be read or does not belong there."""


class ConfigError(GTError, ValueError):
    """A configuration that cannot be used: names the file, the line and the known keys."""

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(text)
        self.key = key  # the setting that is wrong


class ArgumentError(ValueError, RuntimeError):
    """An argument of an op that does not fit the others: its shape, its size, its value."""


class NoElements(IndexError, ValueError, RuntimeError):
    """A reduction that has no value for an axis of no elements."""


class ArgumentTypeError(TypeError, RuntimeError):
    """An argument of an op of the wrong type or dtype."""


class UnsupportedDTypeError(ArgumentTypeError, NotImplementedError):
    """An op has no kernel for tensors of this dtype, in PyTorch either."""


class ArgumentIndexError(IndexError, RuntimeError):
    """An axis or position that is not there."""


def of_arguments(wrong: ValueError | TypeError | IndexError) -> Exception:
    """The same complaint, as one about an op's arguments."""
    if isinstance(wrong, RuntimeError):
        return wrong
    for python, ours in ((ValueError, ArgumentError), (TypeError, ArgumentTypeError), (IndexError, ArgumentIndexError)):
        if isinstance(wrong, python):
            return ours(*wrong.args)
    return wrong
