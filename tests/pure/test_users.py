"""Users with keys of their own: a pool's configuration, the limits of each user, and the visibility of others."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path

import pytest
from conversation import Conversation
from rich.console import Console

from gt.dispatcher.core import Dispatcher
from gt.dispatcher.users import User, Users
from gt.environment import bytes_in
from gt.errors import ConfigError
from gt.server import users as users_file
from gt.transport.auth import Keys, public_key, user_key
from gt.transport.events import Seen
from gt.transport.messages import (
    VERSION,
    Answer,
    Arrived,
    Ask,
    Batch,
    Bye,
    Came,
    Drop,
    Failed,
    Hello,
    KindDef,
    Mail,
    Message,
    Welcome,
)  # fmt: skip
from gt.watch.stats import client_table

FULL = KindDef(1, "full", ((-2,),), ((2,), 2))
ALICE, BOB, ROOT = "user alice", "user bob", "user root"
NAMED = {
    "alice": User("alice", 2.0, 1 << 30, ("w0",), 2),
    "bob": User("bob"),
    "root": User("root", administrator=True),
}


class Pool(Conversation):
    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher(users=Users(NAMED, {"ab" * 32: "alice"}))
        self.tables = self.dispatcher.tables

    def came(self, name: str, role: str, **asked: object) -> list[Mail]:
        return self.told(self.dispatcher.handle(Mail(name, Hello(VERSION, "", "here", 7, **asked), (), role)))  # type: ignore[arg-type]


@pytest.fixture
def talk() -> Pool:
    made = Pool()
    made.worker("w0")
    made.worker("w1")
    return made


def only(mails: list[Mail], peer: str) -> Message:
    [found] = [m.message for m in mails if m.peer == peer]
    return found


def test_a_worker_is_told_the_users_and_their_limits(talk: Pool) -> None:
    welcome = next(m.message for m in talk.worker("w3") if m.peer == "w3" and isinstance(m.message, Welcome))
    assert welcome.users == {"ab" * 32: "alice"}
    mails = talk.came("c", ALICE, weight=3.0, memory=2 << 30)
    assert Mail("w0", Came("c", 3.0, 1 << 30, "alice", 2.0, 1 << 30)) in mails
    assert {m.peer for m in mails} == {"w0", "c"}, "workers that it may not use know nothing of it"


def test_a_user_s_clients_use_the_workers_that_it_may(talk: Pool) -> None:
    welcome = only(talk.came("a", ALICE), "a")
    assert isinstance(welcome, Welcome) and [w.name for w in welcome.workers] == ["w0"]
    talk.came("b", BOB)  # another's home is the other worker
    talk.came("a2", ALICE)
    for name in ("a", "a2"):
        assert {m.peer for m in talk(name, Batch(1, (FULL,), [(1, 1, 0.5)]))} == {"w0"}
    talk.gone("w0")
    assert talk("a", Batch(2, (), [(1, 2, 0.5)])) == [], "it waits for a worker that it may use"
    assert talk("b", Batch(1, (FULL,), [(1, 1, 0.5)]))[0].peer == "w1"
    assert [m.peer for m in talk.worker("w9", "w0") if isinstance(m.message, Batch) or "Run" in type(m.message).__name__] == [
        "w9"
    ]


@pytest.mark.parametrize("role", ["", "user", "user mallory", "worker"])
def test_who_has_no_user_s_key_is_refused(talk: Pool, role: str) -> None:
    assert isinstance(only(talk.came("c", role), "c"), Bye) and "c" not in talk.tables.clients


def test_a_user_has_no_more_clients_than_it_may(talk: Pool) -> None:
    talk.came("a0", ALICE)
    talk.came("a1", ALICE)
    refused = only(talk.came("a2", ALICE), "a2")
    assert isinstance(refused, Bye) and "2 clients" in refused.why
    talk.gone("a0")
    assert isinstance(talk.came("a3", ALICE)[-1].message, Welcome)


def test_one_user_takes_the_places_of_no_other_and_an_administrator_finds_one(talk: Pool) -> None:
    talk.tables.most_clients = 12
    came = [only(talk.came(f"b{i}", BOB), f"b{i}") for i in range(20)]
    assert sum(isinstance(m, Welcome) for m in came) == 9, "three quarters of the places"
    assert isinstance(came[-1], Bye) and "fewer than 4" in came[-1].why
    assert isinstance(only([m for m in talk.came("a", ALICE) if m.peer == "a"], "a"), Welcome)
    for i in range(2):
        talk.came(f"r{i}", ROOT)
    assert len(talk.tables.clients) == 12 and "full" in only(talk.came("a2", ALICE), "a2").why  # type: ignore[attr-defined]
    assert isinstance(talk.came("r9", ROOT)[-1].message, Welcome), "whoever is to end some of them"


def test_no_client_goes_by_another_s_label(talk: Pool) -> None:
    for name, role in (("a", ALICE), ("b", BOB), ("b2", BOB)):
        talk.came(name, role)
    assert [c.label for c in talk.tables.clients.values()] == ["here:7", "here:7#2", "here:7#3"]


def test_bytes_that_a_worker_got_from_nobody_it_may_serve_are_dropped_there(talk: Pool) -> None:
    talk.came("a", ALICE)  # may use w0 alone
    assert talk("w0", Arrived("a", 1)) == []
    assert talk("w1", Arrived("a", 1)) == [Mail("w1", Drop("a"))]
    assert talk("w1", Arrived("nobody", 1)) == [Mail("w1", Drop("nobody"))]


def test_a_peer_s_name_writes_no_lines_of_its_own(talk: Pool) -> None:
    told: list[str] = []
    talk.dispatcher.reports.tell = told.append
    talk("evil\ngt-server: client root came\x1b[31m", Seen(4))
    assert told == [
        "dropped a message of evil\\ngt-server: client root came\\x1b[31m: "
        "unexpected Seen from evil\\ngt-server: client root came\\x1b[31m"
    ]


def test_the_name_of_a_client_is_no_markup_of_a_table(talk: Pool) -> None:
    row = defaultdict(int, user="bob", process="[/nope][bold]x:smile:1")
    shown = Console(file=io.StringIO(), width=200)
    shown.print(client_table([row], shown.width))
    assert "[/nope][bold]x:smile:1" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_a_table_of_clients_without_users_fits_80_columns() -> None:
    row = {
        "number": 12, "user": "", "process": "a-host:123456", "weight": 1.0, "seconds": 1234.5, "wanted": 1.0, "got": 1.0,
        "wait_p50": 0.0123, "wait_p99": 0.1234, "bytes": 1 << 30, "memory": 0, "moved": 0, "queue": 100, "held": 4000,
    }  # fmt: skip
    shown = Console(file=io.StringIO(), width=80)
    shown.print(client_table([row], shown.width))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text and all(word in text for word in ("process", "in flight", "a-host:123456", "4100")), text
    assert "weight" not in text and "user" not in text, "nobody has any"
    shown.print(client_table([row, {**row, "user": "bob", "weight": 2.0}], shown.width))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text and "bob" in text and "weight" in text and "a wider terminal shows p50" in text, text


def shares(talk: Pool, client: str, about: str) -> object:
    asked = talk(client, Ask(5, about))
    for mail in asked:
        told = {name: {"seconds": 1.0, "total": 2.0, "entitled": 1.0} for name in ("a", "b", "r")}
        last = talk(mail.peer, Answer(mail.message.ticket, {"shares": told}))
    return only(last, client).value  # type: ignore[attr-defined]


def test_statistics_are_each_user_s_own_and_an_administrator_sees_all(talk: Pool) -> None:
    numbers = {}
    for name, role in (("a", ALICE), ("b", BOB), ("r", ROOT)):
        numbers[name] = only([m for m in talk.came(name, role) if m.peer == name], name).index  # type: ignore[attr-defined]
    for client, seen in (("a", {"a"}), ("b", {"b"}), ("r", {"a", "b", "r"})):
        found = shares(talk, client, "stats")
        for worker in found["workers"].values():  # type: ignore[index]
            assert set(worker["shares"]) == {str(numbers[name]) for name in seen}
        assert found["dispatcher"]["clients"] == len(seen)  # type: ignore[index]
        rows = shares(talk, client, "clients")
        assert {row["number"] for row in rows} == {numbers[name] for name in seen}  # type: ignore[attr-defined]
        assert all(row["got"] == 0.5 for row in rows)  # type: ignore[attr-defined]
        assert not {"a", "b", "r"} & set(str(rows).split("'")), "names by which processes know clients are secret"


def test_workers_are_asked_for_the_user_s_own_work_alone(talk: Pool) -> None:
    for name, role in (("a", ALICE), ("b", BOB), ("r", ROOT)):
        talk.came(name, role)
    assert [m.message.argument for m in talk("b", Ask(1, "stats"))] == [("b", ["b"])] * 2
    assert [m.message.argument for m in talk("r", Ask(1, "stats"))] == [("r", None)] * 2


def test_an_administrator_ends_a_client_and_others_end_their_own(talk: Pool) -> None:
    numbers = {
        name: talk.came(name, role)[-1].message.index for name, role in (("a", ALICE), ("b", BOB), ("r", ROOT), ("b2", BOB))
    }
    refused = only(talk("b", Ask(1, "kill", numbers["a"])), "b")
    assert isinstance(refused, Failed) and "no client" in refused.text and "a" in talk.tables.clients
    mails = talk("r", Ask(1, "kill", numbers["a"]))
    assert Mail("r", Answer(1, "here:7")) in mails and isinstance(only(mails, "a"), Bye) and "a" not in talk.tables.clients
    talk("b", Ask(1, "kill", numbers["b2"]))
    assert "b2" not in talk.tables.clients and "b" in talk.tables.clients
    assert isinstance(only(talk("r", Ask(2, "kill", "x")), "r"), Failed)


def test_where_all_share_one_key_nobody_ends_another() -> None:
    talk = Conversation()
    for name in ("a", "b"):
        talk.told(talk.dispatcher.handle(Mail(name, Hello(VERSION, "", "here", 7), (), "user")))
    [refused] = talk("a", Ask(1, "kill", 2))
    assert isinstance(refused.message, Failed) and "administrator" in refused.message.text and "b" in talk.tables.clients


WORKER_KEY, SECRET = "the key of this pool's workers", "the secret of one of its users"


def write(folder: Path, text: str) -> str:
    path = folder / "pool.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o666])
def test_a_pool_whose_keys_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, f"worker_key: {WORKER_KEY}\nusers: {{alice: {{key: {SECRET}}}}}")
    assert "alice" in users_file.read(path).users
    Path(path).chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:o} and holds the keys of a pool"):
        users_file.read(path)


def test_a_pool_is_read_from_yaml(tmp_path: Path) -> None:
    found = users_file.read(write(tmp_path, f"""
worker_key: {WORKER_KEY}
users:
  alice: {{key: {SECRET}, weight: 2, memory: 20GB, workers: [gpu-0, 1], clients: 3}}
  root:
    key: another secret, of the administrator
    administrator: true
"""))  # fmt: skip
    assert found.users["alice"] == User("alice", 2.0, 20 << 30, ("gpu-0", 1), 3)
    assert found.users["root"].administrator and found.keys == Keys("", WORKER_KEY) and found.keys.pool
    assert found.known().public[public_key(SECRET)] == "alice"


def test_the_pool_on_the_page_about_sharing_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text()
    found = users_file.read(write(tmp_path, page.split("```yaml\n")[1].split("```")[0]))
    assert found.users["alice"].memory == 20 << 30 and found.users["carol"].administrator


@pytest.mark.parametrize(
    "text, said",
    [
        ("users: {alice: {key: 0123456789abcdef}}", "worker_key"),
        ("worker_key: 0123456789abcdef", "users"),
        ("worker_key: 0123456789abcdef\nusers: {alice: {weight: 2}}", "no key"),
        ("worker_key: 0123456789abcdef\nusers:\n  alice: {key: short}", "16"),
        ("worker_key: 0123456789abcdef\nusers: {a: {key: 0123456789abcdef}}", "another's"),
        ("worker_key: 0123456789abcdef\nusers:\n  a: {key: 0123456789abcdeX, weight: heavy}", "line 3"),
        ("worker_key: 0123456789abcdef\nusers:\n  a: {key: 0123456789abcdeX, memory: lots}", "20GB"),
        ("worker_key: 0123456789abcdef\nusers:\n  a: {key: 0123456789abcdeX, wieght: 1}", "known are key, weight, memory"),
        ("worker_key: 0123456789abcdef\nusers:\n  a b: {key: 0123456789abcdeX}", "letters"),
    ],
)
def test_an_error_names_the_fault_of_a_pool_file(tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GT_WORKER_KEY", raising=False)
    with pytest.raises(ConfigError, match=said):
        users_file.read(write(tmp_path, text))


def test_a_user_s_key_has_its_secret_and_the_listeners_public_key() -> None:
    key = Keys(user_key(SECRET, WORKER_KEY)).check()
    assert key.secret == SECRET and key.listener_public() == Keys("", WORKER_KEY).listener()[0]
    assert Keys(SECRET).secret == SECRET and Keys("an odd@key of a whole team").secret == "an odd@key of a whole team"


@pytest.mark.parametrize("text, found", [("20GB", 20 << 30), ("500 mb", 500 << 20), ("1.5K", 1536), ("7", 7), ("1TB", 1 << 40)])
def test_sizes_are_read(text: str, found: int) -> None:
    assert bytes_in(text) == found


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1XB", "many", "1e999TB"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="20GB"):
        bytes_in(text)
