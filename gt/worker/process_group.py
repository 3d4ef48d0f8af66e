"""What torch.distributed gives: Gloo on CPUs, NCCL where each worker has a GPU of its own. A process group is built for a set
of workers when first needed, straight over a store that its first worker keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gt.transport.messages import Peer

LONG = timedelta(days=7)  # a group ends by message, not by time-out


class Group:
    """A process group that is being built, or is built, or could not be."""

    def __init__(self, members: tuple[int, ...], me: int, mates: dict[int, Peer], host: str, bell: Callable[[], None]) -> None:
        self.members, self.rank, self.host, self.bell = members, members.index(me), host, bell
        self.store = mates[members[0]].store.partition("|")[0]
        gpus = {mates[m].store.partition("|")[2] for m in members}
        self.nccl = "" not in gpus and len(gpus) == len(members)  # NCCL refuses two members on one GPU
        self.made: Any = None
        self.failed: Exception | None = None
        threading.Thread(target=self._build, name="gt-group", daemon=True).start()

    def _build(self) -> None:
        try:
            host, _, port = self.store.rpartition(":")
            store = dist.TCPStore(host, int(port), None, False, timedelta(seconds=60), False)
            named = dist.PrefixStore("gt/" + "-".join(map(str, self.members)), store)
            self.made = self._nccl(named) if self.nccl else self._gloo(named)
        except Exception as failed:  # whatever the network did, the collective that waits for it tells of it
            self.failed = failed
        self.bell()

    def _gloo(self, store: Any) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.host)]
        options._timeout = LONG
        return dist.ProcessGroupGloo(store, self.rank, len(self.members), options)

    def _nccl(self, store: Any) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = LONG
        group = dist.ProcessGroupNCCL(store, self.rank, len(self.members), options)
        group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
        return group


class OnDevice:
    """Work of NCCL. What follows it on the device would be in order without a word to the host; the host waits, as only then
    is it sure that nobody had nothing to give."""

    def __init__(self, work: Any, bell: Callable[[], None]) -> None:
        work.wait()  # orders this device's stream behind the collective
        self.end = torch.cuda.Event(blocking=True)
        self.end.record()
        threading.Thread(target=self._watch, args=(self.end, bell), name="gt-device", daemon=True).start()

    @staticmethod
    def _watch(end: Any, bell: Callable[[], None]) -> None:
        end.synchronize()
        bell()

    def done(self) -> bool:
        return self.end.query()

    def wait(self) -> None:
        """It has been waited for."""
