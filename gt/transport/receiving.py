"""Which thread receives for a session: a state machine that opens no socket, starts no thread and never blocks. The link asks
it before it waits and reports events to it.

One thread receives at a time, the one that holds the turn: a reader (a user's thread that waits for a reply, so that no other
thread has to wake it), or else the link's background thread. The background thread also sends the rest of the buffer when the
user's threads pause; how it detects a pause depends on its state."""

from __future__ import annotations

import threading
from enum import Enum

PATIENCE = 3  # looks without progress after which a trace in progress is given up
LOOK = 1e-3  # seconds from look to look, about
TURN_LEFT = 20  # milliseconds for which the turn is left to the next reader, after one had to ask for it
TAKEN = [True]  # of a reader that has the turn


class Background(Enum):
    """The states of the link's background thread."""

    RECEIVING = "holds the turn: polls the sockets, and the wake_timer that a written buffer sets"
    WATCHING = "leaves the turn to readers that come often; looks at the buffer every few milliseconds, without a wake timer"
    RESTING = "a reader has held the turn since the last look, or the next one is to find it free; sleeps until a reader leaves"
    CLOSED = "has given the turn back for good"


class Receiving:
    """The turn, and the state of the background thread. `turn` is only tried here, never waited for, except by the link's last
    step."""

    __slots__ = ("state", "turn", "closed", "_visits", "_seen", "_armed", "_yields", "_asked", "_stays", "free")

    def __init__(self) -> None:
        self.state = Background.WATCHING
        self.turn = threading.Lock()
        self.closed = False
        self._visits = 0  # times that a reader took the turn
        self._seen = 0  # the visits at the background thread's last look
        self._armed = False  # the wake_timer is set
        self._yields = False  # a value arrived and no thread waits for another: the next reader may receive its own
        self._asked = False  # a reader asked the background thread for the turn
        self._stays = False  # one did since it was last taken: the turn is left to the next for a while
        self.free = False  # the background thread rests though no reader has the turn

    # Readers

    def reader_comes(self, taken: list[bool], seconds: float = 0.0) -> bool:
        """A reader asks for the turn, and waits for it so long. Returns whether it has it; if not, another thread passes it its
        reply. `taken` becomes TAKEN in the same step of C: Ctrl-C may come after a call, before its result is noted."""
        taken[:] = map(self.turn.acquire, (seconds > 0,), (seconds or -1,))
        if taken != TAKEN:
            return False
        self._visits += 1
        return True

    def reader_asks(self) -> bool:
        """A reader without the turn asks the background thread for it. Returns whether to wake that thread, which receives and
        gives the turn back when it has woken."""
        self._asked = self.state is Background.RECEIVING
        self._stays = self._stays or self._asked
        return self._asked

    def reader_came(self) -> None:
        """A reader has taken the turn."""
        self._visits += 1

    def reader_left(self, others: bool) -> bool:
        """The reader has released the turn; `others`: more readers wait. Returns whether to wake the background thread."""
        return others or self.state is Background.RESTING and not self.free

    # Any thread

    def buffer_written(self) -> bool:
        """The buffer has instructions to send. Returns whether to set the wake_timer, if it is not set: a watching thread polls
        the buffer by itself."""
        if self.state is Background.WATCHING or self._armed:
            return False
        self._armed = True
        return True

    def timer_fired(self) -> None:
        """The wake_timer fired, and is not set any more."""
        self._armed = False

    def batch_sent(self) -> bool:
        """Whether to cancel the wake_timer."""
        armed, self._armed = self._armed, False
        return armed

    def received(self, last: bool) -> None:
        """The holder of the turn handled a message; `last`: no reader waits any more."""
        self._yields = last

    def close(self) -> None:
        """From now on `advance` ends the background thread, and readers leave."""
        self.closed = True

    # The background thread

    def advance(self, called: bool = False, awaited: bool = False, late: bool = False) -> Background:
        """The background thread's next state, after it acted on its state: received once, looked at the buffer, or woke.
        `called`: a leaving reader woke it. `awaited`: a reader waits for a reply, or a message for the receiver to send it.
        `late`: it has rested for as long as it leaves a free turn to readers."""
        match self.state:
            case Background.RECEIVING if self._yields or self._asked or self.closed:
                self.state = Background.WATCHING  # before the turn is free, or the thread would miss the reader that takes it
                self._seen = self._visits
                self.turn.release()
            case Background.WATCHING if self._visits != self._seen and not called:
                self._seen = self._visits
            case Background.WATCHING if self.turn.locked() and not called:
                self.state = Background.RESTING
                self._rested(awaited)  # the reader may have left before it could see that the thread rests
            case Background.WATCHING if self._stays and not (called or awaited):
                self.state, self.free = Background.RESTING, True
            case Background.WATCHING:
                self._take()
            case Background.RESTING if self.free and self._visits == self._seen and not (awaited or self.turn.locked()):
                if late:
                    self._take()  # else the wake_timer rang
            case Background.RESTING:
                self._rested(awaited)
        if self.closed:
            self._end()
        return self.state

    def _rested(self, awaited: bool) -> None:
        self.free = False
        if not self.turn.locked():
            self.state, self._seen = Background.WATCHING, self._visits
            if awaited:
                self._take()

    def _take(self) -> None:
        """Receive, if no reader does."""
        if self.turn.acquire(blocking=False):
            self._yields = self._asked = self._stays = self.free = False  # before a reader can see that the thread receives
            self.state = Background.RECEIVING
        else:
            self.state, self._seen = Background.WATCHING, self._visits

    def _end(self) -> None:
        if self.state is Background.RECEIVING:
            self.turn.release()
        self.state = Background.CLOSED


class Pause(Enum):
    """Whether the user's threads have stopped writing."""

    NONE = "they wrote something since the last look"
    SHORT = "they wrote nothing: the buffer is sent, but a trace in progress may go on"
    LONG = "they have written nothing for several looks: a trace in progress is sent as it is, too"


class Pauses:
    """Detects from the number of written instructions, look by look, whether the user's threads pause."""

    __slots__ = ("_written", "_looks")

    def __init__(self) -> None:
        self._written = self._looks = 0

    def look(self, written: int, busy: float = 0.0) -> Pause:
        """`busy`: seconds for which a trace in progress is held in any case."""
        self._looks = self._looks + 1 if written == self._written else 0
        self._written = written
        if not self._looks:
            return Pause.NONE
        return Pause.LONG if self._looks >= max(PATIENCE, busy / LOOK) else Pause.SHORT
