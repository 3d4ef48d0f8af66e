"""Scheduling of requests: the waiting ones, the ones with a slot and pages, and the tokens of the next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gt.persistent.batch import DecodeBatch, TokenSpan
from gt.persistent.pages import OutOfPages, PagePool, pages_for
from gt.persistent.sampling import Sampling


@dataclass(eq=False)
class Request:
    id: int
    tokens: list[int]
    limit: int  # tokens it may have, prompt included
    sampling: Sampling
    seed: int
    cached: int = 0  # tokens whose keys and values are in the pages
    slot: int | None = None
    done: bool = False
    pages: list[int] = field(default_factory=list)


class Scheduler:
    """Requests join when a slot and the pages of their prompt are free, in the order of arrival."""

    def __init__(self, pool: PagePool, slots: int, max_tokens: int, eos: tuple[int, ...]) -> None:
        self.pool, self.max_tokens, self.eos = pool, max_tokens, eos
        self.slots: list[Request | None] = [None] * slots
        self.waiting: deque[Request] = deque()
        self.requests: dict[int, Request] = {}

    def active(self) -> list[Request]:
        return [request for request in self.slots if request is not None]

    def add(self, request: Request) -> None:
        needed = pages_for(len(request.tokens), self.pool.page_size)
        if needed > self.pool.count:
            raise ValueError(
                f"a prompt of {len(request.tokens)} tokens needs {needed} pages of {self.pool.page_size}, "
                f"but there are {self.pool.count}: raise max_num_pages"
            )
        self.requests[request.id] = request
        self.waiting.append(request)

    def prepare(self, steps: int) -> int:
        """Assign slots and pages for the next steps; returns their number. Raises OutOfPages, without any change, if it is
        0."""
        pool = self.pool
        needed = sum(pool.missing(r.pages, len(r.tokens)) for r in self.active())
        if needed > len(pool.free):
            raise OutOfPages(
                f"the next step needs {needed} more pages of {pool.page_size} tokens and {len(pool.free)} of {pool.count} are "
                f"free: cancel one of the {len(self.active())} active requests, or give a larger max_num_pages"
            )
        for request in self.active():
            pool.grow(request.pages, len(request.tokens))
        self._admit()
        if any(len(r.tokens) - r.cached > 1 for r in self.active()):
            return 1
        while steps > 1 and sum(pool.missing(r.pages, self._length_after(r, steps)) for r in self.active()) > len(pool.free):
            steps //= 2
        for request in self.active():
            pool.grow(request.pages, self._length_after(request, steps))
        return steps

    def _length_after(self, request: Request, steps: int) -> int:
        """The number of cached tokens after this many steps."""
        return min(len(request.tokens) + steps - 1, request.limit)

    def _admit(self) -> None:
        for slot, holder in enumerate(self.slots):
            if holder is not None or not self.waiting:
                continue
            request = self.waiting[0]
            if self.pool.missing(request.pages, len(request.tokens)) > len(self.pool.free):
                return
            self.waiting.popleft()
            self.pool.grow(request.pages, len(request.tokens))
            request.slot, self.slots[slot] = slot, request

    def batches(self, every_row: bool = False) -> Iterator[tuple[DecodeBatch, list[Request]]]:
        """All tokens that are not cached yet, at most max_tokens at a time, with the request of every wanted row.

        The last token of a request is wanted, or all of them.
        """
        tokens: list[int] = []
        spans: list[TokenSpan] = []
        wanted: list[int] = []
        owners: list[Request] = []
        for request in self.active():
            start, end = request.cached, len(request.tokens)
            while start < end:
                count = min(end - start, self.max_tokens - len(tokens))
                first = len(tokens)
                assert request.slot is not None
                spans.append(TokenSpan(request.slot, first, count, start, request.pages))
                tokens += request.tokens[start : start + count]
                start += count
                if every_row or start == end:
                    rows = list(range(first, first + count)) if every_row else [len(tokens) - 1]
                    wanted += rows
                    owners += [request] * len(rows)
                if len(tokens) == self.max_tokens:
                    yield DecodeBatch(np.array(tokens), spans, np.array(wanted, np.int64)), owners
                    tokens, spans, wanted, owners = [], [], [], []
        if tokens:
            yield DecodeBatch(np.array(tokens), spans, np.array(wanted, np.int64)), owners

    def append(self, request: Request, token: int) -> None:
        request.tokens.append(token)
        if token in self.eos or len(request.tokens) >= request.limit:
            self.finish(request)

    def finish(self, request: Request) -> None:
        """Free the slot and pages of a request; its tokens stay."""
        request.done = True
        self.pool.release(request.pages)
        if request.slot is not None:
            self.slots[request.slot], request.slot = None, None
        elif request in self.waiting:
            self.waiting.remove(request)

    def check(self) -> None:
        self.pool.check([r.pages for r in self.requests.values()])
        assert all(r.slot == i for i, r in enumerate(self.slots) if r is not None)
