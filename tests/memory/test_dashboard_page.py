"""The dashboard's answers, asked for without a socket: the page with its data, metrics, the search, and the key."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import Any

import pytest

from gt.transport import events as e

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from gt.watch.dashboard import Board, application  # noqa: E402


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
def board() -> Board:
    made = Board("ipc://nowhere")
    columns = (array("q", [1]), array("q", [5]), array("d", [10.0]), array("f", [0.5]))
    spans = e.Spans("vm:7", *(c.tobytes() for c in columns), meanings=(e.Meaning(1, "matmul", "matmul"),), worker="w0")
    lines = e.Lines("vm:7", array("q", [5]).tobytes(), array("H", [0]).tobytes(), ("</script>.py:3",))
    made.model.add(e.Watched(1, (e.Joined("w0", 9.0, 0, "numpy"), e.Joined("vm:7", 9.0), lines, spans)))
    return made


def test_the_page_holds_what_it_shows_at_first_and_loads_nothing_from_elsewhere(board: Board) -> None:
    status, text = get(application(board), "/")
    begin = text.index('type="application/json">') + len('type="application/json">')
    first = json.loads(text[begin : text.index("</script>", begin)])
    assert (
        status == 200 and [w["name"] for w in first["workers"]] == ["w0"] and [c["label"] for c in first["clients"]] == ["vm:7"]
    )
    assert "src=" not in text and "http" not in text.replace("http-equiv", "")


def test_metrics_and_search_are_of_the_same_events(board: Board) -> None:
    app = application(board)
    assert 'gt_worker_group_seconds_total{worker="w0",group="matmul"} 0.5' in get(app, "/metrics")[1].splitlines()
    assert get(app, "/search", "text=matmul")[1] == "10.000000 w0 vm:7 matmul 500000.0 us </script>.py:3"
    assert get(app, "/search", "text=conv")[1] == "" and get(app, "/elsewhere")[0] == 404


def test_with_a_key_nothing_is_shown_without_it(board: Board) -> None:
    app = application(board, "a key")
    for path in ("/", "/metrics", "/search", "/events"):
        assert get(app, path)[0] == 401 and get(app, path, "key=another")[0] == 401
    assert get(app, "/metrics", "key=a%20key")[0] == 200
    assert get(app, "/metrics", authorization="Bearer a key")[0] == 200
