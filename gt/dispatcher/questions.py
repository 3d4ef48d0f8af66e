"""What clients ask about the workers: each living worker is asked, and the answers are put together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from gt.dispatcher import sharding
from gt.dispatcher.tables import Client, Question, Tables, WorkerState
from gt.transport import checks
from gt.transport.messages import Answer, Ask, Failed, Mail


class Questions:
    """Questions of clients that workers have yet to answer."""

    def __init__(self, tables: Tables) -> None:
        self.tables, self.tickets = tables, count(1)

    def ask(self, client: Client, ask: Ask) -> Iterable[Mail]:
        match ask.about:
            case "record" if type(ask.argument) is not int or ask.argument < 1:
                yield Mail(client.name, Failed(ask.ticket, "GTError", f"cannot keep {ask.argument!r} times: want 1 or more"))
            case "stats" | "record" | "times" | "programs" if self._open(client) >= checks.QUESTIONS:
                why = f"{checks.QUESTIONS} questions of this client wait for workers already"
                yield Mail(client.name, Failed(ask.ticket, "GTError", why))
            case "stats" | "record" | "times" | "programs":
                ticket = next(self.tickets)
                question = Question(client.name, ask.ticket, {w.index for w in self.tables.living()})
                self.tables.questions[ticket] = question
                for worker in self.tables.living():
                    yield Mail(worker.peer, Ask(ticket, ask.about, (client.name, ask.argument)))
                yield from self._settled(ticket, question)
            case "placement":
                yield Mail(client.name, Answer(ask.ticket, sharding.placement(client, ask.argument)))
            case _:
                yield Mail(client.name, Failed(ask.ticket, "GTError", f"nothing is known about {ask.about!r}"))

    def _open(self, client: Client) -> int:
        return sum(question.client == client.name for question in self.tables.questions.values())

    def answer(self, worker: WorkerState, ticket: int, value: Any) -> Iterable[Mail]:
        question = self.tables.questions.get(ticket)
        if question is None:
            return
        question.waiting.discard(worker.index)
        question.answers[worker.index] = value
        yield from self._settled(ticket, question)

    def _settled(self, ticket: int, question: Question) -> Iterable[Mail]:
        if question.waiting:
            return
        self.tables.questions.pop(ticket, None)
        answers = {
            self.tables.workers[i].name: {"index": i, **a} for i, a in sorted(question.answers.items()) if isinstance(a, dict)
        }
        own = {"clients": len(self.tables.clients), "dropped": self.tables.dropped}
        yield Mail(question.client, Answer(question.ticket, {"workers": answers, "dispatcher": own}))

    def lose_client(self, client: Client) -> None:
        """Nobody waits for this client's answers any more."""
        for ticket in [t for t, q in self.tables.questions.items() if q.client == client.name]:
            del self.tables.questions[ticket]

    def lose_worker(self, worker: WorkerState) -> Iterable[Mail]:
        """Questions go on without this worker's answer."""
        for ticket, question in list(self.tables.questions.items()):
            question.waiting.discard(worker.index)
            yield from self._settled(ticket, question)
