"""Loops over text: a small GPT trained in several ways, BERT fine-tuned on padded sentences, recurrent layers, speech."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from loops import Loop, Setting, Steps, classify, training
from models import gpt

VOCABULARY = 65


def _text(rng: np.random.Generator, batch: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    ids = rng.integers(0, VOCABULARY, (batch, tokens + 1))
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def language_model(
    at: Setting, read: int = 10, dropout: float = 0.0, autocast: bool = False, lengths: int = 1, accumulate: int = 1,
    evaluate: int = 0, precision: str = "highest",
) -> Steps:  # fmt: skip
    """AdamW, clipped gradients and a schedule; the loss read every `read` steps. `lengths` sequence lengths come in turn,
    gradients of `accumulate` batches are added up, and every `evaluate` steps there are two batches without gradients. Float32
    products have the `precision`."""
    lib, F = at.lib, at.lib.nn.functional
    layers, width, tokens, size = at.pick((6, 384, 256, 8), (2, 64, 32, 4))
    model = at.model(partial(gpt, layers=layers, width=width, heads=width // 64 or 1, tokens=tokens, dropout=dropout))
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = lib.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    long = [tokens - i * tokens // 16 for i in range(lengths)]
    data = at.batches(lambda rng: [_text(rng, size, n) for n in long])

    def loss_of(ids: Any, targets: Any, places: Any) -> Any:
        logits = model(ids, places)  # (batch, tokens, vocabulary)
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))

    forward = at.compiled(loss_of)

    def loss_at(i: int) -> Any:
        ids, targets = (at.put(a) for a in data(i)[i % lengths])
        places = at.put(np.arange(ids.shape[1]))
        if not autocast:
            return forward(ids, targets, places)
        with lib.autocast(at.device, dtype=lib.bfloat16):
            return forward(ids, targets, places)

    def steps(n: int) -> list[float]:
        lib.set_float32_matmul_precision(precision)  # for the whole process
        try:
            return train(n)
        finally:
            lib.set_float32_matmul_precision("highest")

    def train(n: int) -> list[float]:
        losses = []
        for i in range(n):
            for part in range(accumulate):
                loss = loss_at(i * accumulate + part)
                (loss / accumulate if accumulate > 1 else loss).backward()
            lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if i % read == read - 1:
                losses.append(loss.item())
            if evaluate and i % evaluate == evaluate - 1:
                model.eval()
                with lib.no_grad():
                    losses.append(sum(loss_at(k).item() for k in range(2)) / 2)
                model.train()
        return losses

    return steps


def bert(at: Setting) -> Steps:
    """Sentences of unequal length, padded to the longest of the batch's group, with a mask; two classes, AdamW, warm-up."""
    lib, F, nn = at.lib, at.lib.nn.functional, at.lib.nn
    layers, width, heads, longest, size, words = at.pick((4, 256, 4, 128, 32, 8000), (2, 32, 2, 16, 8, 100))

    def make(lib: Any) -> Any:
        nn = lib.nn

        class Classifier(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Embedding(longest, width)
                self.norm = nn.LayerNorm(width)
                self.layers = nn.ModuleList([
                    nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(layers)
                ])  # fmt: skip
                self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 2)

            def forward(self, ids: Any, places: Any, padding: Any) -> Any:
                x = self.norm(self.words(ids) + self.places(places))
                for layer in self.layers:
                    x = layer(x, src_key_padding_mask=padding)
                return self.head(self.pool(x[:, 0]).tanh())

        return Classifier()

    model = at.model(make)
    optimizer = lib.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01)
    schedule = lib.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 100))

    def batch(rng: np.random.Generator) -> tuple:
        long = rng.integers(longest // 4, longest + 1, size)
        long[0] = longest
        padding = np.arange(longest) >= long[:, None]
        ids = np.where(padding, 0, rng.integers(1, words, (size, longest)))
        return ids, padding, rng.integers(0, 2, size)

    data = at.batches(batch)
    forward = at.compiled(lambda ids, places, padding, label: F.cross_entropy(model(ids, places, padding), label))

    def steps(n: int) -> list[float]:
        losses = []
        for i in range(n):
            ids, padding, label = (at.put(a) for a in data(i))
            loss = forward(ids, at.put(np.arange(longest)), padding, label)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if i % 5 == 4:
                losses.append(loss.item())
        return losses

    return steps


def recurrent(at: Setting, layer: str, both: bool = False) -> Steps:
    """Two layers over a sequence, in `both` directions or one, the class from the last state; Adam."""
    wide, length, size = at.pick((256, 64, 32), (32, 16, 8))

    def make(lib: Any) -> Any:
        nn = lib.nn

        class Reader(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.recurrent = getattr(nn, layer)(wide, wide, 2, batch_first=True, bidirectional=both)
                self.head = nn.Linear(2 * wide if both else wide, 10)

            def forward(self, x: Any) -> Any:
                y, _ = self.recurrent(x)
                return self.head(y[:, -1])

        return Reader()

    model = at.model(make)
    optimizer = at.lib.optim.Adam(model.parameters(), lr=1e-3)
    return classify(at, model, optimizer, (length, wide), size)


def speech(at: Setting) -> Steps:
    """An LSTM in both directions over frames, and the CTC loss of utterances of different lengths; Adam."""
    frames, size, words, wide, classes = at.pick((400, 16, 60, 320, 64), (60, 8, 12, 48, 29))
    F = at.lib.nn.functional

    def make(lib: Any) -> Any:
        nn = lib.nn

        class Listener(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.recurrent = nn.LSTM(40, wide, 2, batch_first=True, bidirectional=True)
                self.head = nn.Linear(2 * wide, classes)

            def forward(self, x: Any) -> Any:
                return F.log_softmax(self.head(self.recurrent(x)[0]), dim=-1).transpose(0, 1)

        return Listener()

    def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        heard = rng.standard_normal((size, frames, 40), np.float32), rng.integers(1, classes, (size, words))
        return *heard, rng.integers(frames * 3 // 4, frames + 1, size), rng.integers(words // 2, words + 1, size)

    model = at.model(make)
    optimizer = at.lib.optim.Adam(model.parameters(), lr=1e-3)
    data = at.batches(batch)
    forward = at.compiled(model)

    return training(at, data, lambda x, y, heard, said: F.ctc_loss(forward(x), y, heard, said), optimizer)


# benchmarks/results/README.md has the profiles
KERNELS = (
    "the device has no pause: of its 3.4 ms products by tensor cores take 1.9, pieces 0.3 and attention 0.4; eager is bound by "
    "its host's Python, and 7.9 to 10.5 ms were seen on one host"
)
STEPS = "the CTC loss goes step by step in 14,000 kernels: PyTorch's read lengths on the host, which no CUDA graph can contain"
FIFTH = "the worker waits after the read of every fifth step"
PIECES = "pointwise ops and norms are kernels of their own, and the client takes 1.6 ms"
LM = partial(Loop, of_eager=2.5, why_on_gpu=KERNELS)
LOOPS = {
    "lm": LM(language_model),
    "lm-read": LM(
        partial(language_model, read=1),
        reads=1,
        why_on_cpu="the worker waits for the client between two steps; the same loop with a read every ten is lm",
    ),
    "lm-dropout": LM(partial(language_model, dropout=0.1), tolerance=0.1),  # other masks
    "lm-bf16": LM(
        partial(language_model, autocast=True),
        tolerance=2e-2,
        why_on_gpu=PIECES,
        why_on_cpu="the worker computes all of the time; other runs had 1.16 and 1.25, and rounds differ by 40%",
    ),  # fmt: skip
    "lm-tf32": LM(partial(language_model, precision="high"), tolerance=2e-2, why_on_gpu=PIECES),
    "lm-lengths": LM(partial(language_model, lengths=8), steps=16),
    "lm-accumulate": LM(
        partial(language_model, accumulate=4),
        why_on_cpu="the kernels of forward and backward are eager's; GT gains by the update, and here is one for four of them",
    ),
    "lm-evaluate": LM(partial(language_model, evaluate=20), steps=20),
    "bert": Loop(
        bert,
        why_on_gpu="its kernels take 3.1 ms, and after the read of every fifth step the device waits for the next batch",
    ),
    "lstm": Loop(partial(recurrent, layer="LSTM"), why_on_cpu=FIFTH),
    "lstm-both": Loop(partial(recurrent, layer="LSTM", both=True), why_on_cpu=FIFTH),
    "gru": Loop(partial(recurrent, layer="GRU")),
    "rnn": Loop(partial(recurrent, layer="RNN")),
    "speech": Loop(speech, why_on_gpu=STEPS, why_on_cpu="LSTM and CTC loss are eager's kernels, most of the step in both"),
}
