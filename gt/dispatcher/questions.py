"""Questions of clients about the workers: each living worker is asked, and the answers are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from gt.dispatcher import clients, sharding
from gt.dispatcher.tables import Client, PendingQuestion, Tables, WorkerState
from gt.transport import checks
from gt.transport.messages import Answer, Ask, Failed, Mail


class Questions:
    """Questions of clients that workers have yet to answer."""

    def __init__(self, tables: Tables, end: Callable[[str, str], list[Mail]]) -> None:
        """`end(client, why)` ends a client's membership."""
        self.tables, self.end, self.tickets = tables, end, count(1)

    def ask(self, client: Client, ask: Ask) -> Iterable[Mail]:
        match ask.about:
            case "stats" | "clients" | "programs" if self._open(client) >= checks.QUESTIONS:
                why = f"{checks.QUESTIONS} questions of this client already wait for workers"
                yield Mail(client.name, Failed(ask.ticket, "GTError", why))
            case "stats" | "clients":
                alone = client.user.name and not client.user.administrator
                whose = [c.name for c in self.tables.seen_by(client)] if alone else None
                yield from self._to_workers(client, ask, "stats", whose)
            case "programs":
                yield from self._to_workers(client, ask, ask.about, ask.argument)
            case "network" if ask.argument is None:
                hosts = self.tables.hosts
                of = {w.name: hosts.of[w.index] for w in self.tables.usable(client)}
                yield Mail(client.name, Answer(ask.ticket, {"hosts": of, "links": hosts.links, "crossing": hosts.crossing}))
            case "network":
                owner = not client.user.name or client.user.administrator
                why = (
                    self.tables.hosts.keep(ask.argument) if owner else "only an administrator may set the network's bandwidths"
                )
                kept = Answer(ask.ticket, self.tables.hosts.crossing)
                yield Mail(client.name, Failed(ask.ticket, "GTError", why) if why else kept)
            case "kill":
                yield from self._kill(client, ask.ticket, ask.argument)
            case "placement":
                yield Mail(client.name, Answer(ask.ticket, sharding.placement(client, ask.argument)))
            case _:
                yield Mail(client.name, Failed(ask.ticket, "GTError", f"unknown question {ask.about!r}"))

    def _kill(self, client: Client, ticket: int, number: Any) -> Iterable[Mail]:
        """End a client by its number. An administrator may end any client, a user with a key of its own that user's clients."""
        other = next((c for c in self.tables.seen_by(client) if c.number == number), None)
        if not client.user.administrator and not client.user.name:
            why = "ending clients requires an administrator's key: this server has none (gt.server --config)"
            return [Mail(client.name, Failed(ticket, "GTError", why))]
        if other is None:
            known = ", ".join(str(c.number) for c in self.tables.seen_by(client))
            return [Mail(client.name, Failed(ticket, "GTError", f"no client {number!r}: the clients are {known}"))]
        who = client.user.name or "an administrator"
        return [Mail(client.name, Answer(ticket, other.label)), *self.end(other.name, f"ended this session: {who} asked")]

    def _to_workers(self, client: Client, ask: Ask, about: str, argument: Any) -> Iterable[Mail]:
        ticket, workers = next(self.tickets), self.tables.usable(client)
        question = PendingQuestion(client.name, ask.ticket, {w.index for w in workers}, ask.about)
        self.tables.questions[ticket] = question
        for worker in workers:
            yield Mail(worker.peer, Ask(ticket, about, (client.name, argument)))
        yield from self._settled(ticket, question)

    def _open(self, client: Client) -> int:
        return sum(question.client == client.name for question in self.tables.questions.values())

    def answer(self, worker: WorkerState, ticket: int, value: Any) -> Iterable[Mail]:
        question = self.tables.questions.get(ticket)
        if question is None:
            return
        question.waiting.discard(worker.index)
        question.answers[worker.index] = value
        yield from self._settled(ticket, question)

    def _settled(self, ticket: int, question: PendingQuestion) -> Iterable[Mail]:
        if question.waiting:
            return
        self.tables.questions.pop(ticket, None)
        client = self.tables.clients[question.client]
        answers = {i: a for i, a in sorted(question.answers.items()) if isinstance(a, dict)}
        if question.about == "clients":
            yield Mail(client.name, Answer(question.ticket, clients.listing(self.tables, client, answers)))
            return
        shown = {}
        for i, answer in answers.items():
            shares = answer.get("shares")
            seen = {"shares": clients.by_number(self.tables, client, shares)} if isinstance(shares, dict) else {}
            shown[self.tables.workers[i].name] = {"index": i, **answer, **seen}
        own = {
            "clients": len(self.tables.seen_by(client)),
            "dropped": self.tables.dropped,
            "drained": self.tables.drained,
            "moved": self.tables.moved,
            "lane_messages": self.tables.lane_messages,
            "trims": self.tables.trims,
            "short_slices": self.tables.short_slices,
        }
        yield Mail(client.name, Answer(question.ticket, {"workers": shown, "dispatcher": own}))

    def lose_client(self, client: Client) -> None:
        """Drop the questions of a departed client."""
        for ticket in [t for t, q in self.tables.questions.items() if q.client == client.name]:
            del self.tables.questions[ticket]

    def lose_worker(self, worker: WorkerState) -> Iterable[Mail]:
        """Answer the questions that waited for a lost worker, without its part."""
        for ticket, question in list(self.tables.questions.items()):
            question.waiting.discard(worker.index)
            question.answers.pop(worker.index, None)
            yield from self._settled(ticket, question)
