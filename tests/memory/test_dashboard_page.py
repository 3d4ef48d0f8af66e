"""The dashboard's responses, without a socket: the page with its data, metrics, the search, and the key."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import Any

import pytest

from gt.transport import events as e

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from gt.watch.dashboard import MAX_STREAMS, DashboardState, application  # noqa: E402

KEY, SHOWN = "the key of a page", "key=the%20key%20of%20a%20page"


def get(app: Any, path: str, query: str = "", **headers: str) -> tuple[int, str]:
    """A request as a web server hands it to an application."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2), "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:]).decode()


@pytest.fixture
def board() -> DashboardState:
    made = DashboardState("ipc://nowhere")
    columns = (array("q", [1]), array("q", [5]), array("d", [10.0]), array("f", [0.5]))
    spans = e.Spans("vm:7", *(c.tobytes() for c in columns), meanings=(e.Meaning(1, "matmul", "matmul"),), worker="w0")
    lines = e.Lines("vm:7", array("q", [5]).tobytes(), array("H", [0]).tobytes(), ("</script>.py:3",))
    made.model.add(e.Watched(1, (e.Joined("w0", 9.0, 0, "numpy"), e.Joined("vm:7", 9.0), lines, spans)))
    return made


def test_the_page_holds_its_first_state_and_loads_nothing_from_elsewhere(board: DashboardState) -> None:
    status, text = get(application(board, KEY), "/", SHOWN)
    begin = text.index('type="application/json">') + len('type="application/json">')
    first = json.loads(text[begin : text.index("</script>", begin)])
    assert (
        status == 200 and [w["name"] for w in first["workers"]] == ["w0"] and [c["label"] for c in first["clients"]] == ["vm:7"]
    )
    assert "src=" not in text and "http" not in text.replace("http-equiv", "")


def test_metrics_and_search_are_of_the_same_events(board: DashboardState) -> None:
    app = application(board, KEY)
    assert 'gt_worker_group_seconds_total{worker="w0",group="matmul"} 0.5' in get(app, "/metrics", SHOWN)[1].splitlines()
    assert get(app, "/search", f"text=matmul&{SHOWN}")[1] == "10.000000 w0 vm:7 matmul 500000.0 us </script>.py:3"
    assert get(app, "/search", f"text=conv&{SHOWN}")[1] == "" and get(app, "/elsewhere")[0] == 404


@pytest.mark.parametrize("key", [KEY, ""])
def test_nothing_is_shown_without_the_key_and_nothing_at_all_where_there_is_none(board: DashboardState, key: str) -> None:
    app = application(board, key)
    for path in ("/", "/metrics", "/search", "/events"):
        assert get(app, path)[0] == 401 and get(app, path, "key=another")[0] == 401 and get(app, path, "key=")[0] == 401
        assert get(app, path, authorization="Bearer ")[0] == 401
    if key:
        assert get(app, "/metrics", SHOWN)[0] == 200
        assert get(app, "/metrics", authorization=f"Bearer {KEY}")[0] == 200


def test_pages_share_one_update_and_are_so_many_at_most(board: DashboardState) -> None:
    made = 0
    update = board.update

    def counted() -> dict[str, Any]:
        nonlocal made
        made += 1
        return update()

    board.update = counted  # type: ignore[method-assign]
    texts = [board.update_text() for _ in range(5)]
    assert made == 1 and len(set(texts)) == 1 and json.loads(texts[0])["workers"]
    board.streams = MAX_STREAMS
    assert get(application(board, KEY), "/events", SHOWN)[0] == 503


def test_who_has_gone_is_forgotten_in_time(board: DashboardState) -> None:
    model = board.model
    for i in range(500):
        model.add(e.Watched(i, (e.Joined(f"c{i}", 1.0), e.Placed(f"c{i}", 1.0, "rows", "float32[2]", "on 0"))))
        left = (e.Departed(f"c{i}", 1.0, "it left"), e.Departed(f"w-{i}", 1.0, "", i))
        model.add(e.Watched(i, (e.Joined(f"w-{i}", 1.0, i), *left)))
    assert len(model.clients) < 100 and len(model.workers) < 100 and not model.placed
    assert [w.name for w in model.connected_workers()] == ["w0"] and [c.label for c in model.connected_clients()] == ["vm:7"]
    for i in range(5000):
        model.add(e.Watched(i, (e.Placed("vm:7", 1.0, f"signal {i}", "float32[2]", "on 0"),)))
    assert len(model.placed) <= 4096 and ("vm:7", "signal 4999") in model.placed
