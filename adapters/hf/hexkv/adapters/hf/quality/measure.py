"""One serde on one model: its payloads' bytes, and the change of the model's expectations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, sqrt

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.held import planes_of
from hexkv.adapters.hf.shape import layout_of
from hexkv.kernels import ContiguousKV
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    CorruptFrame,
    Deadline,
    DType,
    EngineBusy,
    KVLayout,
    Serde,
    Span,
    Transfer,
)

CHUNK = 256
"""Tokens. The rest at the end of a prefix is encoded as a shorter chunk."""

RAW = "raw"


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt."""

    prefix: Tensor
    """``[tokens]``, whose KV is cached."""

    suffix: Tensor
    """``[tokens]``, which are computed after it."""

    judged: Tensor
    """Places in the suffix; the model's expectations after them count."""

    wanted: Tensor
    """The tokens that follow there."""


Layers = list[list[Tensor]]
"""``[layer][plane]`` of ``[1, heads, tokens, width]``."""


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """The outcome of one case."""

    raw_bytes: int
    payload_bytes: int
    tokens: int
    """Of the prefix."""

    divergence: float
    """Nats, on average over the judged places: how far the expectation is from the raw KV's."""

    surprise: float
    """Nats by which the real continuation surprises more than after raw KV, on average."""

    agreed: float
    """Share of judged places where the likeliest token is the raw KV's."""

    right: float
    """Share of judged places where it is the real continuation."""

    seconds: float
    """For encoding and decoding."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All cases of one model."""

    bytes_per_token: float
    ratio: float
    kl: float
    kl_error: float
    """Standard error of the mean, over the cases."""

    perplexity_change: float
    """As a share."""

    perplexity_change_error: float
    agreement: float
    right: float
    seconds: float = 0.0
    """For encoding and decoding, of all cases."""


def measure(
    model: PreTrainedModel,
    cases: Iterable[Case],
    serdes: Mapping[str, Serde],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Summary]:
    """The change that each of *serdes* makes to *model*, and :data:`RAW`, which makes none.

    Raises:
        CorruptFrame: one promises the same bytes and gives others.
        LayoutMismatch: the model's KV cannot be cached.
    """
    layout = replace(layout_of(model), dtype=DType.BFLOAT16)
    answers: dict[str, list[CaseAnswer]] = {name: [] for name in (RAW, *serdes)}
    for case in cases:
        remembered = read(model, case.prefix)
        expected = expect(model, case, remembered)
        chunks = cut(layout, remembered)
        raw_bytes = sum(len(chunk) for _, _, chunk in chunks)
        answers[RAW].append(_judge(case, expected, expected, raw_bytes, raw_bytes, 0.0))
        for name, serde in serdes.items():
            began = time.perf_counter()
            decoded, size = through(serde, layout, chunks)
            seconds = time.perf_counter() - began
            given = expect(model, case, joined(layout, decoded))
            if serde.lossless and not bool((given == expected).all()):
                raise CorruptFrame(f"{name} gives other bytes than it was given")
            answers[name].append(_judge(case, given, expected, raw_bytes, size, seconds))
        progress(1)
    return {name: _summary(given) for name, given in answers.items()}


@torch.no_grad()
def read(model: PreTrainedModel, prefix: Tensor) -> Layers:
    """The KV of *prefix*, in bfloat16."""
    cache = DynamicCache()
    ids = prefix[None].to(model.device)
    model(input_ids=ids, **with_cache(model, cache), use_cache=True, logits_to_keep=1)
    return [[plane.bfloat16().cpu() for plane in planes] for planes in planes_of(cache)]


@torch.no_grad()
def expect(model: PreTrainedModel, case: Case, remembered: Layers) -> Tensor:
    """Log-probabilities ``[judged, vocabulary]`` with *remembered* as the KV of the prefix."""
    cache = DynamicCache()
    for index, (keys, values) in enumerate(remembered):
        on_device = [plane.to(model.device, model.dtype) for plane in (keys, values)]
        cache.update(on_device[0], on_device[1], index)
    ids = case.suffix[None].to(model.device)
    logits: Tensor = model(input_ids=ids, **with_cache(model, cache)).logits[0].cpu()
    return logits[case.judged].double().log_softmax(-1)


def cut(layout: KVLayout, layers: Layers) -> list[Span]:
    """The chunks of *layers*."""
    window = ContiguousKV(layout, layers)
    spans = []
    for start in range(0, window.tokens, CHUNK):
        end = min(start + CHUNK, window.tokens)
        spans.append(Span(start, end, memoryview(bytearray(layout.chunk_bytes(end - start)))))
    _finish(window.gather(spans))
    return spans


def joined(layout: KVLayout, chunks: Sequence[Span]) -> Layers:
    """The layers whose chunks these are."""
    tokens = chunks[-1].end
    layers = [
        [torch.empty(1, p.heads, tokens, p.width, dtype=torch.bfloat16) for p in planes]
        for planes in layout.planes
    ]
    _finish(ContiguousKV(layout, layers).scatter(chunks))
    return layers


def through(serde: Serde, layout: KVLayout, chunks: Sequence[Span]) -> tuple[list[Span], int]:
    """The chunks that *serde* decodes from its own payloads, and the payloads' bytes."""
    back, total = [], 0
    for start, end, chunk in chunks:
        payload = memoryview(bytearray(serde.bound(len(chunk))))
        size = serde.encode(chunk, layout, end - start, payload)
        decoded = memoryview(bytearray(len(chunk)))
        serde.decode(payload[:size], layout, end - start, decoded)
        back.append(Span(start, end, decoded))
        total += size
    return back, total


def _finish(transfer: Transfer) -> None:
    if not transfer.wait(Deadline.after(SystemClock(), 60)):
        raise EngineBusy("memory is not copied within a minute")


def _judge(
    case: Case, given: Tensor, expected: Tensor, raw_bytes: int, size: int, seconds: float
) -> CaseAnswer:
    follows = case.wanted[:, None]
    likeliest = given.argmax(-1)
    return CaseAnswer(
        raw_bytes,
        size,
        len(case.prefix),
        float((expected.exp() * (expected - given)).sum(-1).mean()),
        float((expected.gather(-1, follows) - given.gather(-1, follows)).mean()),
        float((likeliest == expected.argmax(-1)).double().mean()),
        float((likeliest == case.wanted).double().mean()),
        seconds,
    )


def _summary(answers: Sequence[CaseAnswer]) -> Summary:
    payload = sum(answer.payload_bytes for answer in answers)
    raw = sum(answer.raw_bytes for answer in answers)
    kl, kl_error = _mean([answer.divergence for answer in answers])
    surprise, surprise_error = _mean([answer.surprise for answer in answers])
    return Summary(
        bytes_per_token=round(payload / sum(answer.tokens for answer in answers), 1),
        ratio=round(raw / payload, 3),
        kl=kl,
        kl_error=kl_error,
        perplexity_change=expm1(surprise),
        perplexity_change_error=surprise_error,
        agreement=statistics.fmean(answer.agreed for answer in answers),
        right=statistics.fmean(answer.right for answer in answers),
        seconds=sum(answer.seconds for answer in answers),
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.fmean(values), spread / sqrt(len(values))
