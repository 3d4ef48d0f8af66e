"""The users of a pool, from YAML: each with its key and its limits. `gt keys` prints the key of each user."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gt import environment
from gt.config import pairs, place_of, plain_value, text_of, top
from gt.dispatcher.users import User, Users
from gt.errors import ConfigError, ConnectionFailed
from gt.ownership import why_not_own
from gt.transport.auth import HOW, Keys, public_key, user_key
from gt.transport.messages import WEIGHTS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class UsersFile:
    """The workers' key, the users and their secrets, by name."""

    worker_key: str
    users: Mapping[str, User]
    secrets: Mapping[str, str]

    def known(self) -> Users:
        return Users(self.users, {public_key(secret): name for name, secret in self.secrets.items()})

    @property
    def keys(self) -> Keys:
        return Keys("", self.worker_key)


def read(path: str) -> UsersFile:
    """The users that a YAML file describes: `worker_key:` (or GT_WORKER_KEY) and `users:`, settings by name."""
    try:
        wrong = why_not_own(path, secret=True)
    except OSError as missing:
        raise ConfigError(f"cannot read the configuration {path}: {missing.strerror}") from None
    if wrong:
        raise ConfigError(f"{wrong} and holds the keys of a pool: make it yours alone by `chmod 600`")
    given = {key.value: node for key, node in top(text_of(path), path, "a pool", ("worker_key", "users"))}
    worker_key = plain_value(given["worker_key"]) if "worker_key" in given else environment.WORKER_KEY.value()
    if not isinstance(worker_key, str) or not worker_key:
        raise ConfigError(
            f"{path}: expected a key for the pool's workers: worker_key: here or GT_WORKER_KEY, such as `{HOW}` prints"
        )
    if "users" not in given:
        raise ConfigError(f"{path}: expected users: settings of each by its name, such as `alice: {{key: ...}}`")
    users, secrets = {}, {}
    for key, node in pairs(given["users"], path, "users"):
        users[key.value], secrets[key.value] = _user(key, node, path)
    _check_keys(path, worker_key, secrets)
    return UsersFile(worker_key, users, secrets)


def _user(key: Any, node: Any, path: str) -> tuple[User, str]:
    name, settings = key.value, dict[str, Any]()
    if not NAME.fullmatch(name):
        raise ConfigError(f"{place_of(key, path)}: a user's name: expected letters, digits, '.', '_' and '-', got {name!r}")
    for setting, value in pairs(node, path, f"user {name!r}", READ):
        try:
            settings[setting.value] = READ[setting.value](plain_value(value))
        except ValueError as wrong:
            raise ConfigError(f"{place_of(value, path)}: user {name!r}: {setting.value}: {wrong}", setting.value) from None
    secret = settings.pop("key", "")
    if not secret:
        raise ConfigError(f"{place_of(node, path)}: user {name!r} has no key: take one such as `{HOW}` prints", "key")
    return User(name, **settings), secret


def _check_keys(path: str, worker_key: str, secrets: Mapping[str, str]) -> None:
    for name, secret in secrets.items():
        if secret == worker_key or sum(secret == other for other in secrets.values()) > 1:
            raise ConfigError(f"{path}: the key of user {name!r} is another's: expected a different key for each")
        try:
            Keys(secret, worker_key).check()
        except ConnectionFailed as wrong:
            raise ConfigError(f"{path}: user {name!r}: {wrong}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, such as `{HOW}` prints, got {value!r}")
    return value


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not WEIGHTS[0] <= value <= WEIGHTS[1]:
        raise ValueError(f"expected a number from {WEIGHTS[0]:g} to {WEIGHTS[1]:g}, got {value!r}")
    return float(value)


def _workers(value: object) -> tuple[int | str, ...]:
    if not isinstance(value, list) or not value or not all(type(w) is int and w >= 0 or isinstance(w, str) for w in value):
        raise ValueError(f"expected a list of workers' names or numbers, got {value!r}")
    return tuple(value)


def _clients(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"expected an integer of 1 or more, got {value!r}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {value!r}")
    return value


READ: dict[str, Callable[[Any], Any]] = {
    "key": _text, "weight": _weight, "memory": lambda value: environment.bytes_in(str(value)), "workers": _workers,
    "clients": _clients, "administrator": _truth,
}  # fmt: skip


def add_parser(commands: Any) -> None:
    """`gt keys POOL.YAML`."""
    p = commands.add_parser(
        "keys", help="print the key of each user of a pool", description="Print the key of each user of a pool."
    )
    p.add_argument("users", help="the YAML file that `gt server --config` reads")
    p.add_argument("user", nargs="?", help="print the key of this user only")
    p.set_defaults(run=show)


def show(args: argparse.Namespace) -> int:
    named = read(args.users)
    if args.user and args.user not in named.secrets:
        raise ConfigError(f"{args.users}: no user {args.user!r}: there are {', '.join(named.secrets)}")
    for name, secret in named.secrets.items():
        if args.user in (None, name):
            print(f"{name} GT_KEY={user_key(secret, named.worker_key)}")
    return 0
