"""PersistentKernel: a decoder-only transformer that generates tokens for many requests over a paged key-value cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gt.persistent import choice, sampling
from gt.persistent.builder import Builder
from gt.persistent.executor import Executor, ExecutorSettings
from gt.persistent.models import ModelLayers, StateDict, read_config, token_set
from gt.persistent.pages import PagePool, pages_for
from gt.persistent.requests import Request, Scheduler
from gt.persistent.sampling import Sampling

MODES = ("decode", "offline", "onepass")
DTYPES = ("float32", "bfloat16")
CONTEXT = 2048  # max_seq_length if neither the caller nor the model gives one


class PersistentKernel(Builder):
    """Generates tokens with one model on one backend; docs/persistent.md describes every option.

    `kernel()` gives, in mode "decode", one more token to every active request (`steps=n`: n tokens); in mode "offline", runs
    all requests to their end; in mode "onepass", returns the logits of every token of every request.
    """

    def __init__(
        self,
        mode: str = "decode",
        backend: str | None = None,
        fallback_backends: Sequence[str] = (),
        *,
        world_size: int = 1,
        mpi_rank: int = 0,
        num_workers: int | None = None,
        max_num_pages: int | None = None,
        page_size: int = 16,
        max_seq_length: int | None = None,
        max_num_batched_requests: int = 8,
        max_num_batched_tokens: int = 64,
        eos_token_id: int | Iterable[int] | None = None,
        use_cutlass_kernel: bool = False,
        dtype: Any = "float32",
        device: Any = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        model: tuple[Any, Any] | None = None,
        prompts: Iterable[Sequence[int]] = (),
    ) -> None:
        super().__init__(world_size, mpi_rank)
        if mode not in MODES:
            raise ValueError(f"no mode {mode!r}: known are {', '.join(MODES)}")
        self.mode = mode
        self.requested_backend = backend or choice.backends.get_default_backend()
        self.backend, self._executor_class, self.fallback_reason = choice.choose(backend, fallback_backends)
        self._counts = {"page_size": page_size, "max_num_batched_requests": max_num_batched_requests}
        self._counts |= {"max_num_batched_tokens": max_num_batched_tokens}
        optional = {"num_workers": num_workers, "max_num_pages": max_num_pages, "max_seq_length": max_seq_length}
        for name, count in [*self._counts.items(), *optional.items()]:
            if count is not None and (not isinstance(count, (int, np.integer)) or count < 1):
                raise ValueError(f"{name}: expected an integer of 1 or more, got {count!r}")
        self._check_ranks(world_size, mpi_rank)
        self.dtype = str(dtype).split(".")[-1]
        if self.dtype not in DTYPES:
            raise ValueError(f"no dtype {dtype!r}: known are {', '.join(DTYPES)}")
        self.num_workers, self.max_num_pages, self.max_seq_length = num_workers, max_num_pages, max_seq_length
        self.device = None if device is None else str(device)
        self.use_cutlass_kernel = bool(use_cutlass_kernel)
        options = {"num_workers": num_workers, "device": self.device, "use_cutlass_kernel": use_cutlass_kernel or None}
        options["world_size"] = world_size if world_size > 1 else None
        self._executor_class.check(self.backend, self.dtype, options)
        self.sampling, self.seed = Sampling(temperature, top_k, top_p), seed
        self._eos = None if eos_token_id is None else token_set(eos_token_id)
        self._executor: Executor | None = None
        self._next_id, self._finalized = 0, False
        if model is not None:
            self.load_model(*model)
        for prompt in prompts:
            self.add_request(prompt)

    def _check_ranks(self, world_size: int, mpi_rank: int) -> None:
        if not 0 <= mpi_rank < world_size:
            raise ValueError(f"mpi_rank: expected 0 to world_size - 1, got mpi_rank {mpi_rank} of world_size {world_size}")

    def load_model(self, config: Any, state_dict: Any) -> PersistentKernel:
        """A Qwen3 or Llama of Hugging Face: its config, and its state dict or safetensors files."""
        self._open()
        read = read_config(config)
        limit = read.positions or CONTEXT
        length = self.max_seq_length or min(limit, CONTEXT)
        if length > limit:
            raise ValueError(f"max_seq_length: expected at most the model's max_position_embeddings {limit}, got {length}")
        self.max_seq_length = length
        self._eos = read.eos if self._eos is None else self._eos
        ModelLayers(self, read, StateDict(state_dict)).build(length)
        return self

    def compile(self) -> PersistentKernel:
        """Prepare the backend: check the model, lay out weights, allocate pages. The first request or call does it, too."""
        self._open()
        if self._executor is not None:
            return self
        self.program.check()
        tables = self.program.positions()
        self.max_seq_length = length = self.max_seq_length or tables or CONTEXT
        if tables is not None and tables < length:
            raise ValueError(f"max_seq_length: expected at most the {tables} positions of the rotary tables, got {length}")
        size, slots = self._counts["page_size"], self._counts["max_num_batched_requests"]
        usable = slots * pages_for(length, size)  # more pages are never used at one time
        pages = min(self.max_num_pages or usable, usable)
        settings = ExecutorSettings(
            pages, size, slots, self._counts["max_num_batched_tokens"], length, self.num_workers, self.dtype, self.device,
            self.use_cutlass_kernel, self.world_size, self.mpi_rank,
        )  # fmt: skip
        self._pool = PagePool(pages, size)
        self._executor = self._executor_class(self.program, settings)
        self._schedule()
        return self

    def _schedule(self) -> None:
        slots, tokens = self._counts["max_num_batched_requests"], self._counts["max_num_batched_tokens"]
        self.scheduler = Scheduler(self._pool, slots, tokens, self._eos or ())

    def add_request(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> int:
        """Queue a prompt; returns the request's id. Sampling options replace those of the kernel for this request."""
        self.compile()
        assert self.max_seq_length is not None
        prompt = [int(token) for token in tokens]
        vocabulary = self.program.vocabulary()
        if not prompt or min(prompt) < 0 or max(prompt) >= vocabulary:
            raise ValueError(f"a prompt: expected one or more token ids of 0 to {vocabulary - 1}, got {prompt[:8]}")
        if max_new_tokens is not None and max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: expected 1 or more, got {max_new_tokens}")
        longest = self.max_seq_length - (self.mode != "onepass")
        if len(prompt) > longest:
            raise ValueError(
                f"a prompt: expected at most {longest} tokens with max_seq_length {self.max_seq_length}, got {len(prompt)}"
            )
        limit = self.max_seq_length if max_new_tokens is None else min(self.max_seq_length, len(prompt) + max_new_tokens)
        default = self.sampling
        options = Sampling(
            default.temperature if temperature is None else temperature,
            default.top_k if top_k is None else top_k,
            default.top_p if top_p is None else top_p,
        )
        own_seed = sampling.splitmix(sampling.splitmix(self.seed & sampling.MASK) + self._next_id) if seed is None else seed
        self.scheduler.add(Request(self._next_id, prompt, limit, options, own_seed))
        self._next_id += 1
        return self._next_id - 1

    def __call__(self, steps: int = 1) -> dict[int, Any]:
        """New tokens by request id (mode onepass: logits, float32 (tokens, vocabulary)). Without requests, nothing happens."""
        self.compile()
        if self.mode == "onepass":
            return self._onepass()
        if not isinstance(steps, (int, np.integer)) or steps < 1:
            raise ValueError(f"steps: expected an integer of 1 or more, got {steps!r}")
        if self.mode == "decode":
            return self._decode(steps)
        made: dict[int, list[int]] = {}
        while self.scheduler.active() or self.scheduler.waiting:
            for id, tokens in self._decode(CONTEXT).items():
                made.setdefault(id, []).extend(tokens)
        return made

    def _decode(self, steps: int) -> dict[int, list[int]]:
        """Stops early when no request is left."""
        made: dict[int, list[int]] = {}
        assert self._executor is not None
        while steps > 0 and (self.scheduler.active() or self.scheduler.waiting):
            ready = self.scheduler.prepare(steps if self._executor.runs_steps else 1)
            steps -= self._executor.generate(self.scheduler, ready, made)
        return made

    def _onepass(self) -> dict[int, np.ndarray]:
        logits: dict[int, list[np.ndarray]] = {}
        assert self._executor is not None
        while self.scheduler.active() or self.scheduler.waiting:
            self.scheduler.prepare(1)
            for batch, owners in self.scheduler.batches(every_row=True):
                for row, request in zip(self._executor.forward(batch), owners):
                    logits.setdefault(request.id, []).append(row)
            for request in self.scheduler.active():
                self.scheduler.finish(request)
        return {id: np.stack(rows) for id, rows in logits.items()}

    def finished(self, id: int) -> bool:
        """Whether the request has ended: a stop token, max_new_tokens, a full context, or cancelled."""
        return self._request(id).done

    def tokens(self, id: int) -> list[int]:
        """All tokens of the request, the prompt first."""
        return list(self._request(id).tokens)

    def cancel(self, id: int) -> None:
        """End a request; its pages and slot are free, its tokens stay."""
        if not self._request(id).done:
            self.scheduler.finish(self._request(id))

    def reset(self) -> None:
        """Forget all requests. The model and the compiled kernel stay."""
        self._open()
        if self._executor is not None:
            self._pool = PagePool(self._pool.count, self._pool.page_size)
            self._schedule()

    def finalize(self) -> None:
        """Free weights and pages. Nothing can be run afterwards."""
        if self._executor is not None:
            self._executor.close()
        self._executor, self._finalized = None, True

    def _request(self, id: int) -> Request:
        if self._executor is None or id not in self.scheduler.requests:
            raise KeyError(f"no request {id!r}: ids come from add_request, and reset forgets them")
        return self.scheduler.requests[id]

    def _open(self) -> None:
        if self._finalized:
            raise RuntimeError("this kernel was finalized: make another one")
