"""The executor in C++: lays out the program for the compiled decode loop and calls it."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_uint64, c_void_p
from typing import Any

import numpy as np

from gt.backends.facts import cpu_count
from gt.persistent.batch import DecodeBatch
from gt.persistent.executor import Executor, ExecutorSettings
from gt.persistent.openmp.build import BuildError, build
from gt.persistent.program import Activation, AllReduce, Attention, DecodeProgram, Embed, Linear, RMSNorm, SiluMul, Weight
from gt.persistent.program import Layer as ProgramLayer
from gt.persistent.requests import Request, Scheduler

KINDS = (Embed, RMSNorm, Linear, Attention, SiluMul, AllReduce)  # in the order of decode.cpp's Kind
TENSORS = ("input", "output", "weight", "bias", "residual")
NUMBERS = ("heads", "kv_heads", "head_dim", "layer")
TABLES = ("q_norm", "k_norm", "cos", "sin")
LANES, ROWS = 16, 4  # as in decode.h


class LayerRow(ctypes.Structure):
    _fields_ = [("layer_type", c_int64), *((name, c_int64) for name in (*TENSORS, *NUMBERS, *TABLES)), ("eps", c_double)]


class ModelRow(ctypes.Structure):
    _fields_ = [
        ("layer_count", c_int64),
        *((name, c_void_p) for name in ("layers", "weights", "is_bfloat16", "activations", "widths", "strides")),
        ("logits", c_int64),
        ("cache", c_void_p),
        *((name, c_int64) for name in ("pages", "page_size", "max_length", "threads")),
        *((name, c_void_p) for name in ("scores", "tops")),
        ("tops_width", c_int64),
    ]


class BatchRow(ctypes.Structure):
    _fields_ = [
        ("rows", c_int64),
        *((name, c_void_p) for name in ("tokens", "positions", "slots", "tables")),
        ("table_width", c_int64),
        ("wanted_count", c_int64),
        ("wanted", c_void_p),
    ]


class SamplingRow(ctypes.Structure):
    _fields_ = [("temperature", c_double), ("top_k", c_int64), ("top_p", c_double), ("seed", c_uint64)]


class GenerationRow(ctypes.Structure):
    _fields_ = [
        ("steps", c_int64),
        ("stop_at_first_end", c_int64),
        *((name, c_void_p) for name in ("sampling", "limits", "eos")),
        ("eos_count", c_int64),
        *((name, c_void_p) for name in ("made", "counts")),
    ]


def layer_row(layer: ProgramLayer) -> LayerRow:
    row = LayerRow(layer_type=KINDS.index(type(layer)), eps=getattr(layer, "eps", 0.0))
    for name in (*TENSORS, *TABLES):
        tensor: Weight | Activation | None = getattr(layer, name, None)
        setattr(row, name, -1 if tensor is None else tensor.number)
    for name in NUMBERS:
        setattr(row, name, getattr(layer, name, 0))
    return row


def pointers(arrays: list[np.ndarray]) -> Any:
    return (c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


class OpenMPExecutor(Executor):
    """num_workers is the number of threads. Sums are float32; bfloat16 is a matrix's dtype in memory."""

    dtypes = ("float32", "bfloat16")
    options = ("num_workers",)
    runs_steps = True

    @classmethod
    def reason_unavailable(cls) -> str | None:
        try:
            build()
        except BuildError as error:
            return str(error)
        return None

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        super().__init__(program, settings)
        self.library = ctypes.CDLL(str(build()))
        self.library.gt_decode_steps.restype = c_int64
        self.library.gt_decode_read.restype = c_double
        threads = settings.num_workers or cpu_count()
        rows = max(settings.max_tokens, settings.slots)
        self.matrices = sorted({layer.weight.number for layer in program.layers if isinstance(layer, (Embed, Linear))})
        is_bfloat16 = [settings.dtype == "bfloat16" and number in self.matrices for number in range(len(program.weights))]
        self.weights = self._laid_out(program.weights, is_bfloat16)
        program.weights = []  # replaced by the arrays above
        self.cache: np.ndarray = np.zeros(self.cache_shape, np.float32)
        # The structures have addresses only; this keeps the arrays alive.
        self.kept: dict[str, Any] = {
            "layers": (LayerRow * len(program.layers))(*map(layer_row, program.layers)),
            "weights": pointers(self.weights),
            "is_bfloat16": np.array(is_bfloat16, np.int64),
            "buffers": [np.zeros((rows, whole_vectors(a.width)), np.float32) for a in program.activations],
            "widths": np.array([a.width for a in program.activations], np.int64),
            "strides": np.array([whole_vectors(a.width) for a in program.activations], np.int64),
            "scores": np.zeros((threads, settings.max_length), np.float32),
            "tops": np.zeros((threads, rows), np.int64),
        }
        self.kept["activations"] = pointers(self.kept["buffers"])
        self.tables = np.zeros((settings.slots, -(-settings.max_length // settings.page_size)), np.int64)
        self.model = self._model(threads, rows)

    def _laid_out(self, weights: list[Any], is_bfloat16: list[bool]) -> list[np.ndarray]:
        """The weights as decode.h reads them: packed matrices, contiguous vectors."""
        return [
            packed(array, narrow) if number in self.matrices else np.ascontiguousarray(array, np.float32)
            for number, (array, narrow) in enumerate(zip(weights, is_bfloat16))
        ]

    def _model(self, threads: int, rows: int) -> ModelRow:
        """The structure of the model; its addresses are those of the arrays in `kept`."""
        program, settings, kept = self.program, self.settings, self.kept
        assert program.logits is not None
        return ModelRow(
            layer_count=len(program.layers),
            **{name: ctypes.addressof(kept[name]) for name in ("layers", "weights", "activations")},
            **{name: kept[name].ctypes.data for name in ("is_bfloat16", "widths", "strides", "scores", "tops")},
            logits=program.logits.number,
            cache=self.cache.ctypes.data,
            pages=settings.pages,
            page_size=settings.page_size,
            max_length=settings.max_length,
            threads=threads,
            tops_width=rows,
        )

    def forward(self, batch: DecodeBatch) -> np.ndarray:
        assert self.program.logits is not None
        slots = np.repeat([span.slot for span in batch.spans], [span.rows for span in batch.spans])
        for span in batch.spans:
            self.tables[span.slot, : len(span.pages)] = span.pages
        tokens, positions, wanted = (np.ascontiguousarray(a, np.int64) for a in (batch.tokens, batch.positions(), batch.wanted))
        row = self._batch(tokens, positions, slots, wanted)
        logits = np.empty((len(wanted), self.program.logits.width), np.float32)
        self.library.gt_decode_forward(ctypes.byref(self.model), ctypes.byref(row), c_void_p(logits.ctypes.data))
        return logits

    def _batch(self, tokens: np.ndarray, positions: np.ndarray, slots: np.ndarray, wanted: np.ndarray) -> BatchRow:
        """The arrays must live until the call has returned."""
        return BatchRow(
            len(tokens),
            *(array.ctypes.data for array in (tokens, positions, slots, self.tables)),
            self.tables.shape[1],
            len(wanted),
            wanted.ctypes.data,
        )

    def generate(self, scheduler: Scheduler, steps: int, made: dict[int, list[int]]) -> int:
        requests = scheduler.active()
        if any(len(request.tokens) - request.cached > 1 for request in requests):
            return super().generate(scheduler, steps, made)  # prompts, in chunks
        tokens, counts, taken = self._steps(requests, steps, scheduler)
        for request, row, count in zip(requests, tokens, counts):
            request.cached += int(count)
            for token in row[:count].tolist():
                scheduler.append(request, token)
                made.setdefault(request.id, []).append(token)
        return taken

    def _steps(self, requests: list[Request], steps: int, scheduler: Scheduler) -> tuple[np.ndarray, np.ndarray, int]:
        tokens = np.array([r.tokens[-1] for r in requests], np.int64)
        positions = np.array([r.cached for r in requests], np.int64)
        slots = np.array([r.slot for r in requests], np.int64)
        for request in requests:
            self.tables[request.slot, : len(request.pages)] = request.pages
        limits, eos = np.array([r.limit for r in requests], np.int64), np.array(scheduler.eos, np.int64)
        sampling = (SamplingRow * len(requests))(
            *(
                SamplingRow(r.sampling.temperature, r.sampling.top_k, r.sampling.top_p, r.seed & ((1 << 64) - 1))
                for r in requests
            )
        )
        made, counts = np.zeros((len(requests), steps), np.int64), np.zeros(len(requests), np.int64)
        wanted = np.arange(len(requests), dtype=np.int64)
        batch = self._batch(tokens, positions, slots, wanted)
        generation = GenerationRow(
            steps,
            bool(scheduler.waiting),
            ctypes.addressof(sampling),
            limits.ctypes.data,
            eos.ctypes.data,
            len(eos),
            made.ctypes.data,
            counts.ctypes.data,
        )
        taken = self.library.gt_decode_steps(ctypes.byref(self.model), ctypes.byref(batch), ctypes.byref(generation))
        return made, counts, taken

    def last_logits(self) -> np.ndarray:
        """The logits of the last tokens, for tests."""
        assert self.program.logits is not None
        return self.kept["buffers"][self.program.logits.number][:, : self.program.logits.width].copy()

    def read_weights(self) -> int:
        """Read every matrix with the threads of a step and do nothing else; returns the bytes. The bound of a step's time."""
        matrices = [self.weights[number] for number in self.matrices]
        sizes = np.array([array.nbytes for array in matrices], np.int64)
        self.library.gt_decode_read(
            pointers(matrices), c_void_p(sizes.ctypes.data), c_int64(len(matrices)), c_int64(self.model.threads)
        )
        return int(sizes.sum())

    def fill_pages(self, pages: list[int], value: float) -> None:
        self.cache[:, :, pages] = value

    def close(self) -> None:
        super().close()
        self.weights, self.kept, self.cache = [], {}, np.zeros(0, np.float32)


def whole_vectors(width: int) -> int:
    return -(-width // LANES) * LANES


def packed(array: np.ndarray, narrow: bool) -> np.ndarray:
    """A matrix as decode.h's `products` reads it: LANES numbers of each of ROWS rows in turn, zeros past the ends."""
    rows, width = array.shape
    padded = np.zeros((-(-rows // ROWS) * ROWS, whole_vectors(width)), np.float32)
    padded[:rows, :width] = array
    turned = padded.reshape(-1, ROWS, padded.shape[1] // LANES, LANES).swapaxes(1, 2)
    if not narrow:
        return np.ascontiguousarray(turned)
    import ml_dtypes

    return np.ascontiguousarray(turned.astype(ml_dtypes.bfloat16))
