"""The executor that both kernel sets share: static buffers, phases in order, one graph for each size of batch.

A run of steps fills the state on the device, replays a graph for each step and reads the result after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gt.garbage import uncollected
from gt.persistent.batch import DecodeBatch
from gt.persistent.executor import Executor, ExecutorSettings
from gt.persistent.gpu.phases import Product, phases
from gt.persistent.gpu.state import MOST_STEPS, DecodeState, choose_on_device
from gt.persistent.program import Activation, AllReduce, Attention, DecodeProgram, Embed, Linear, RMSNorm, SiluMul, Weight
from gt.persistent.requests import Scheduler

PADDING = 64  # rows of matrices begin at multiples of this many numbers


class Rows(NamedTuple):
    """The rows of one forward, as tensors on the device; position -1 is an empty row."""

    tokens: Any
    positions: Any
    slots: Any
    wanted: Any  # rows whose logits are requested, None for all

    def __len__(self) -> int:
        return self.tokens.shape[0]


def bucket(rows: int, most: int) -> int:
    """The next power of two, at most `most`."""
    return min(1 << (rows - 1).bit_length(), most)


class GraphExecutor(Executor):
    """A subclass computes each phase."""

    dtypes = ("float32", "bfloat16")
    options: tuple[str, ...] = ("device",)
    runs_steps = True
    keeps_tensors = True
    captures = True  # into CUDA graphs

    @classmethod
    def chosen_device(cls, device: str | None) -> str:
        import torch

        asked = torch.device(device or "cuda")
        return str(asked) if asked.index is not None else f"{asked.type}:{torch.cuda.current_device()}"

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        import torch

        super().__init__(program, settings)
        self.device = torch.device(self.chosen_device(settings.device))
        self.dtype = getattr(torch, settings.dtype)
        self.phases = phases(program)
        matrices = {layer.weight.number for layer in program.layers if isinstance(layer, (Embed, Linear))}
        self.weights: list[Any] = []
        for number, weight in enumerate(program.weights):
            tensor = torch.as_tensor(weight)
            program.weights[number] = np.zeros(0, np.float32)  # frees the host's copy
            self.weights.append(self._stored(tensor, number in matrices))
        program.weights = []
        self.most_rows = max(settings.max_tokens, settings.slots)
        self.buffers: dict[int, Any] = {}
        assert program.logits is not None
        self.logits = torch.zeros((settings.slots, program.logits.width), dtype=torch.float32, device=self.device)
        self.cache: Any = torch.zeros(self.cache_shape, dtype=self.dtype, device=self.device)
        self.state: DecodeState | None = None
        self.graphs: dict[tuple[int, bool], Callable[[], None]] = {}

    def _stored(self, tensor: Any, matrix: bool) -> Any:
        """Vectors and tables stay float32; matrices have the model's dtype and rows that begin at multiples of PADDING."""
        import torch

        if not matrix:
            return tensor.to(self.device, torch.float32).contiguous()
        width = tensor.shape[1]
        if width % PADDING == 0:
            return tensor.to(self.device, self.dtype).contiguous()
        room = torch.zeros((len(tensor), -(-width // PADDING) * PADDING), dtype=self.dtype, device=self.device)
        room[:, :width] = tensor.to(self.device)
        return room

    def weight(self, weight: Weight | None) -> Any:
        return None if weight is None else self.weights[weight.number]

    def buffer(self, activation: Activation, rows: int) -> Any:
        """The first rows of an activation's static memory."""
        import torch

        if activation.number not in self.buffers:
            shape = (self.most_rows, activation.width)
            self.buffers[activation.number] = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return self.buffers[activation.number][:rows]

    def run_state(self) -> DecodeState:
        if self.state is None:
            width = -(-self.settings.max_length // self.settings.page_size)
            self.state = DecodeState(self.settings.slots, width, self.device)
        return self.state

    def forward(self, batch: DecodeBatch) -> np.ndarray:
        import torch

        def ints(values: Any) -> Any:
            return torch.from_numpy(np.asarray(values, np.int32)).to(self.device)

        slots = np.repeat([span.slot for span in batch.spans], [span.rows for span in batch.spans])
        with torch.inference_mode():
            self.run_state().write_tables([(span.slot, span.pages) for span in batch.spans])
            rows = Rows(ints(batch.tokens), ints(batch.positions()), ints(slots), ints(batch.wanted).long())
            logits = self.logits_of(rows, None)
            if len(logits) <= len(self.logits):
                self.logits[: len(logits)].copy_(logits)
            return logits.cpu().numpy()

    def logits_of(self, rows: Rows, out: Any) -> Any:
        """Run all phases; float32 logits of the wanted rows, in `out` if given."""
        import torch

        logits = self.program.logits
        assert logits is not None
        nothing = rows.wanted is not None and len(rows.wanted) == 0
        for phase in self.phases:
            if nothing and phase is self.phases[-1]:
                return torch.empty((0, logits.width), dtype=torch.float32, device=self.device)
            if phase is self.phases[-1] and isinstance(phase, Product) and phase.output == logits:
                x = self.buffer(phase.input, len(rows))
                residual = None if phase.residual is None else self.buffer(phase.residual, len(rows))
                if rows.wanted is not None:
                    x, residual = x[rows.wanted], None if residual is None else residual[rows.wanted]
                if out is None:
                    out = torch.empty((len(x), logits.width), dtype=torch.float32, device=self.device)
                self.product(phase, x, residual, out)
                return out
            self.run_phase(phase, rows)
        made = self.buffer(logits, len(rows))
        made = (made if rows.wanted is None else made[rows.wanted]).float()
        return made if out is None else out.copy_(made)

    def run_phase(self, phase: Any, rows: Rows) -> None:
        count = len(rows)
        out = self.buffer(phase.output, count)
        match phase:
            case Embed():
                self.embed_rows(rows.tokens, self.weight(phase.weight), out)
            case RMSNorm():
                self.norm(self.buffer(phase.input, count), self.weight(phase.weight), phase.eps, out)
            case Product():
                residual = None if phase.residual is None else self.buffer(phase.residual, count)
                self.product(phase, self.buffer(phase.input, count), residual, out)
            case Attention():
                self.attend(phase, self.buffer(phase.input, count), out, rows)
            case SiluMul():
                self.gate(self.buffer(phase.input, count), out)
            case AllReduce():
                if phase.input != phase.output:
                    out.copy_(self.buffer(phase.input, count))

    def step(self, rows: int, greedy: bool) -> None:
        """One token for every row of the state that has not ended, without waiting for the device."""
        state = self.state
        assert state is not None
        view = Rows(state.tokens[:rows], state.positions[:rows], state.slot_of_row[:rows], None)
        logits = self.logits_of(view, self.logits[:rows])
        if greedy:
            self.argmax(logits, state.chosen)
        else:
            choose_on_device(logits, state, rows)
        self.advance(state, rows)

    def replay(self, rows: int, greedy: bool) -> Callable[[], None]:
        """The step as a graph, captured when its size first occurs."""
        import torch

        if not self.captures:
            return lambda: self.step(rows, greedy)
        if (rows, greedy) not in self.graphs:
            state = self.state
            assert state is not None
            before = state.positions.clone()
            state.positions.fill_(-1)  # empty rows write nothing
            self.step(rows, greedy)  # kernels are compiled and libraries initialised before the capture
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with uncollected(), torch.cuda.graph(graph):
                self.step(rows, greedy)
            state.positions.copy_(before)
            self.graphs[rows, greedy] = graph.replay
        return self.graphs[rows, greedy]

    def generate(self, scheduler: Scheduler, steps: int, made: dict[int, list[int]]) -> int:
        import torch

        requests = scheduler.active()
        if any(len(request.tokens) - request.cached > 1 for request in requests):
            return super().generate(scheduler, steps, made)  # prompts, in chunks
        with torch.inference_mode():
            state = self.run_state()
            steps = min(steps, MOST_STEPS)
            greedy = state.fill(requests, steps, scheduler.eos, bool(scheduler.waiting))
            replay = self.replay(bucket(len(requests), self.settings.slots), greedy)
            for _ in range(steps):
                replay()
            counts = state.counts[: len(requests)].tolist()
            tokens = state.made[: len(requests), : max(counts)].tolist()
        for request, row, count in zip(requests, tokens, counts):
            request.cached += count
            for token in row[:count]:
                scheduler.append(request, token)
                made.setdefault(request.id, []).append(token)
        return max(counts)

    def last_logits(self) -> np.ndarray:
        """The logits of the last tokens, for tests."""
        return self.logits.cpu().numpy()

    def fill_pages(self, pages: list[int], value: float) -> None:
        self.cache[:, :, pages] = value

    def close(self) -> None:
        super().close()
        self.graphs, self.buffers, self.weights, self.cache, self.state = {}, {}, [], None, None

    def embed_rows(self, tokens: Any, table: Any, out: Any) -> None:
        raise NotImplementedError

    def norm(self, x: Any, weight: Any, eps: float, out: Any) -> None:
        raise NotImplementedError

    def product(self, phase: Product, x: Any, residual: Any, out: Any) -> None:
        raise NotImplementedError

    def attend(self, layer: Attention, qkv: Any, out: Any, rows: Rows) -> None:
        raise NotImplementedError

    def gate(self, x: Any, out: Any) -> None:
        raise NotImplementedError

    def argmax(self, logits: Any, chosen: Any) -> None:
        raise NotImplementedError

    def advance(self, state: DecodeState, rows: int) -> None:
        raise NotImplementedError
