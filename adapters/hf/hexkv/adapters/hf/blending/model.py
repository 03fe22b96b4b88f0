"""A model over a cache, whose prompts are made of segments in any order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import torch
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.blending.blender import Blender
from hexkv.adapters.hf.blending.gate import KEPT, BlendGate
from hexkv.adapters.hf.blending.loading import Loading, Lost
from hexkv.adapters.hf.blending.plan import (
    BlendCounts,
    BlendedBatch,
    BlendedPrefill,
    BlendPlan,
    KnownPrompt,
)
from hexkv.adapters.hf.cache import RequestKV, window
from hexkv.adapters.hf.held import planes_of
from hexkv.adapters.hf.model import CachedModel, Prefill
from hexkv.blending.api import segments_of
from hexkv.blending.ports import BlendOutcome, BlendReport, PromptParts
from hexkv.ports import InvalidRequest, PrefixCache

log = logging.getLogger("hexkv.hf")

_ATTEMPTS = 2
"""Times that a prompt with damaged segments is blended."""

_PADDED = 1.25
"""How many times as long as another one the longest prompt is that is blended with it. Layers
compute as much of each prompt as of the longest: four of 289 to 1,060 tokens took 1.45 times as
long at once as one after the other."""


@dataclass(frozen=True, slots=True)
class _Made:
    """One prompt, blended."""

    logits: torch.Tensor
    counts: BlendCounts
    asked: int
    """Tokens behind the last reused segment."""

    select_seconds: float
    rotate_seconds: float
    wait_seconds: float


class BlendingModel:
    """A transformers causal model with a cache of prefixes and segments. A context manager.

    Prompts are blended as *gate* allows; the others are computed in full, from the
    longest exact prefix. Approximate KV is stored nowhere. As safe to share between threads as
    the model itself.
    """

    def __init__(self, model: PreTrainedModel, engine: PrefixCache, gate: BlendGate) -> None:
        """Put *engine* under *model*.

        Args:
            model: computes.
            engine: built for ``namespace_of_model(model)``.
            gate: knows how this model may be blended.

        Raises:
            LayoutMismatch: the model's KV cannot be cached, or not be moved to other places.
            InvalidRequest: the gate's record is of another model.
        """
        if gate.record is not None and not gate.record.fits(engine.namespace):
            raise InvalidRequest(f"the record is of {gate.record.model!r}, not of this model")
        self._exact = CachedModel(model, engine)
        self.blender = Blender(model)
        """Computes without an engine, with the same hooks."""

        self._engine = engine
        self._segments = segments_of(engine)
        self._gate = gate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off the model. The engine stays open."""
        self.blender.close()

    def precompute(self, segments: Iterable[torch.Tensor | Sequence[int]]) -> int:
        """Compute segments alone and store them; how many tokens of them the cache has then.

        Segments that are there are not computed again.

        Raises:
            InvalidTokens: one is not one sequence of text.
        """
        stored = 0
        for segment in segments:
            tokens = self.blender.tokens_of(segment)
            space = self._exact.namespace
            known = self._segments.register(tokens, namespace=space)
            if known < len(tokens):
                planes = self.blender.compute(tokens)
                held = window(space.layout, planes, len(tokens))
                self._segments.store(tokens, held, namespace=space)
                known = self._segments.register(tokens, namespace=space)
            stored += known
        return stored

    def prefill(self, input_ids: torch.Tensor | Sequence[int], *, room: int = 0) -> BlendedPrefill:
        """Logits and KV of a prompt: blended from its segments, or computed.

        Args:
            input_ids: ``[tokens]`` or ``[1, tokens]``.
            room: tokens to reserve memory for beyond the prompt.

        Raises:
            InvalidTokens: not one sequence of text.
        """
        began = time.perf_counter()
        tokens = self.blender.tokens_of(input_ids)
        plan, closed = self._plan()
        made: _Made | BlendOutcome = closed or BlendOutcome.FULL
        memory = self.blender.room(len(tokens) + room)
        if plan is not None:
            made = self._blended(tokens, plan, memory)
        full, logits, report, share = self._answer(tokens, made, room, memory)
        cache = memory.filled(len(tokens), len(tokens)) if full is None else full.cache
        waited = made.wait_seconds if isinstance(made, _Made) else 0.0
        return BlendedPrefill(cache, logits, report, share, waited, time.perf_counter() - began)

    def prefill_batch(
        self, prompts: Sequence[torch.Tensor | Sequence[int]], *, room: int = 0
    ) -> BlendedBatch:
        """Logits and KV of several prompts: each blended from its own segments, or computed.

        Those that are blended are one call of the model, with the others' tokens chosen for each;
        those that are not are computed one after the other.

        Args:
            prompts: ``[tokens]`` or ``[1, tokens]`` each, without padding.
            room: tokens to reserve memory for beyond the longest prompt.

        Raises:
            InvalidRequest: there is no prompt.
            InvalidTokens: one is not one sequence of text.
        """
        began = time.perf_counter()
        if not len(prompts):
            raise InvalidRequest("a batch has at least one prompt")
        rows = [self.blender.tokens_of(prompt) for prompt in prompts]
        width = max(map(len, rows))
        before = [width - len(tokens) for tokens in rows]
        memory = self.blender.room(width + room, len(rows))
        memory.pad(before)
        places = [memory.of_sequence(*place) for place in enumerate(before)]
        plan, closed = self._plan()
        made: Sequence[_Made | BlendOutcome]
        made = [closed or BlendOutcome.FULL] * len(rows)
        if plan is not None:
            made = self._blended_together(rows, plan, memory, places)
        answers = [
            self._answer(tokens, what, 0, place)
            for tokens, what, place in zip(rows, made, places, strict=True)
        ]
        for place, (full, *_) in zip(places, answers, strict=True):
            if full is not None:
                place.fill(planes_of(full.cache))
        _, logits, reports, shares = zip(*answers, strict=True)
        slots = torch.arange(width, device=self.blender.model.device)
        mask = (slots >= torch.tensor(before, device=slots.device)[:, None]).long()
        cache = memory.filled(width, width)
        spent = time.perf_counter() - began
        return BlendedBatch(cache, torch.stack(logits), mask, reports, shares, spent)

    def generate(
        self, input_ids: torch.Tensor | Sequence[int], max_new_tokens: int
    ) -> tuple[list[int], BlendedPrefill]:
        """The prompt's greedy continuation, exactly *max_new_tokens* long, and how it began.

        Raises:
            InvalidRequest: *max_new_tokens* is less than one.
            InvalidTokens: not one sequence of text.
        """
        if max_new_tokens < 1:
            raise InvalidRequest(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        prefill = self.prefill(input_ids, room=max_new_tokens)
        new = [int(prefill.logits.argmax())]
        while len(new) < max_new_tokens:
            new.append(int(self._exact.extend(new[-1:], prefill.cache).argmax()))
        return new, prefill

    def generate_batch(
        self, prompts: Sequence[torch.Tensor | Sequence[int]], max_new_tokens: int
    ) -> tuple[list[list[int]], BlendedBatch]:
        """The greedy continuation of each prompt, *max_new_tokens* long, and how they began.

        Raises:
            InvalidRequest: *max_new_tokens* is less than one, or there is no prompt.
            InvalidTokens: a prompt is not one sequence of text.
        """
        if max_new_tokens < 1:
            raise InvalidRequest(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        batch = self.prefill_batch(prompts, room=max_new_tokens)
        mask, new = batch.attention_mask, [batch.logits.argmax(-1, keepdim=True)]
        ends = mask.sum(1, keepdim=True)
        while len(new) < max_new_tokens:
            mask = torch.cat([mask, torch.ones_like(ends)], 1)
            with torch.no_grad():
                logits = self.blender.model(
                    input_ids=new[-1],
                    attention_mask=mask,
                    position_ids=ends + len(new) - 1,
                    **with_cache(self.blender.model, batch.cache),
                    use_cache=True,
                    logits_to_keep=1,
                ).logits
            new.append(logits[:, -1].argmax(-1, keepdim=True))
        return torch.cat(new, 1).tolist(), batch

    def _plan(self) -> tuple[BlendPlan | None, BlendOutcome | None]:
        """How prompts are blended now, or why they are not.

        Weights that changed in memory have no record. Once the former ones are back they do.
        """
        if self._exact.namespace != self._engine.namespace:
            return None, BlendOutcome.NO_RECORD
        return self._gate.plan, self._gate.closed

    def _answer(
        self, tokens: list[int], made: _Made | BlendOutcome, room: int, memory: RequestKV
    ) -> tuple[Prefill | None, torch.Tensor, BlendReport, float]:
        """Answer a prompt: with *made* in *memory*, or with full computation where that is due.

        Returns that computation if it is the answer, logits, report, and the share computed.
        """
        blended = made if isinstance(made, _Made) else None
        if blended is not None and not self._gate.due():
            report = _report(blended)
            self._segments.report(report)
            return None, blended.logits, report, blended.counts.share
        expected = None if blended is None else self._expected(tokens, blended.asked, memory)
        full = self._exact.prefill(tokens, room=room)
        self._keep_first(tokens, full.cache)
        why, kl = made if isinstance(made, BlendOutcome) else BlendOutcome.CHECKED, None
        if blended is not None and expected is not None:
            memory.fill(planes_of(full.cache))
            kl = self._gate.compared(self._expected(tokens, blended.asked, memory), expected)
        hit, computed = full.hit_tokens, len(tokens) - full.hit_tokens
        report = BlendReport(why, prefix=hit, computed=computed, kl=kl)
        self._segments.report(report)
        return full, full.logits, report, computed / len(tokens)

    def _expected(self, tokens: list[int], asked: int, memory: RequestKV) -> torch.Tensor:
        """Logits after each of the last *asked* tokens, computed behind the KV before them."""
        compared = max(1, min(asked, KEPT, len(tokens) - 1))
        cache = memory.filled(len(tokens) - compared, len(tokens))
        with torch.no_grad():
            logits: torch.Tensor = self.blender.model(
                input_ids=torch.tensor([tokens[-compared:]], device=self.blender.model.device),
                **with_cache(self.blender.model, cache),
                use_cache=True,
                logits_to_keep=compared,
            ).logits
        return logits[0]

    def _blended_together(
        self,
        rows: Sequence[list[int]],
        plan: BlendPlan,
        memory: RequestKV,
        places: Sequence[RequestKV],
    ) -> list[_Made | BlendOutcome]:
        """Each of *rows* blended to its place in *memory*; or why not."""
        recomputed = plan.recomputed(self.blender.layers)
        made: dict[int, _Made] = {}
        parts = [self._segments.find(tokens, recomputed=recomputed) for tokens in rows]
        for some in _alike({i: len(rows[i]) for i, found in enumerate(parts) if found.segments}):
            width = max(len(rows[index]) for index in some)
            shared = memory if some == [*range(len(rows))] else self.blender.room(width, len(some))
            try:
                one = self._from([(rows[index], parts[index]) for index in some], plan, shared)
            except Lost as error:
                log.warning("prompts are blended one after the other: %s", error)
                continue
            made.update(zip(some, one, strict=True))
            if shared is not memory:
                for number, index in enumerate(some):
                    place = shared.of_sequence(number, width - len(rows[index]))
                    places[index].fill(place.planes)
        return [
            made.get(index) or self._blended(tokens, plan, place)
            for index, (tokens, place) in enumerate(zip(rows, places, strict=True))
        ]

    def _blended(
        self, tokens: list[int], plan: BlendPlan, memory: RequestKV
    ) -> _Made | BlendOutcome:
        """The prompt from its segments, in *memory*; or why not."""
        recomputed = plan.recomputed(self.blender.layers)
        for _ in range(_ATTEMPTS):
            parts = self._segments.find(tokens, recomputed=recomputed)
            if not parts.segments:
                known = recomputed and self._segments.find(tokens).segments
                return BlendOutcome.NOT_WORTH if known else BlendOutcome.FULL
            try:
                return self._from([(tokens, parts)], plan, memory)[0]
            except Lost as error:  # a damaged segment is not found again
                log.warning("a prompt is blended anew: %s", error)
        return BlendOutcome.FAILED

    def _from(
        self, prompts: Sequence[tuple[list[int], PromptParts]], plan: BlendPlan, memory: RequestKV
    ) -> list[_Made]:
        """Prompts from their parts, in *memory*, where they end together.

        Raises:
            Lost: a part did not arrive.
        """
        width = max(len(tokens) for tokens, _ in prompts)
        with ExitStack() as stack:
            reads, loadings, places = [], [], []
            for index, (tokens, parts) in enumerate(prompts):
                place = memory.of_sequence(index, width - len(tokens))
                device = place.window(len(tokens))
                read = self._segments.retrieve_layers(tokens, device, parts=parts)
                reads.append(stack.enter_context(read))
                loading = Loading(self.blender, place, reads[-1])
                loadings.append(stack.enter_context(loading))
                places.append(place)
            known = [
                KnownPrompt(tokens, loading.parts.prefix, loading.runs, loading.wait)
                for (tokens, _), loading in zip(prompts, loadings, strict=True)
            ]
            made = self.blender.blend_together(known, memory, plan=plan)
            for layers in reads:
                layers.result()
        for prompt, loading, place in zip(known, loadings, places, strict=True):
            # KV before every segment is exact, as it saw no other segment's KV.
            runs = loading.parts.segments
            head = runs[0].start if runs else len(prompt.tokens)
            if head > prompt.prefix:
                self._engine.store(prompt.tokens[:head], place.window(head), skip=prompt.prefix)
        return [
            _Made(
                logits[-1],
                counts,
                len(prompt.tokens) - loading.runs[-1].end if loading.runs else 1,
                selecting,
                loading.rotate_seconds,
                loading.wait_seconds,
            )
            for prompt, logits, counts, selecting, loading in zip(
                known, made.logits, made.counts, made.select_seconds, loadings, strict=True
            )
        ]

    def _keep_first(self, tokens: list[int], cache: DynamicCache) -> None:
        """Store the first segment: with nothing before it, its KV is that of it alone."""
        starts, ends = self._segments.cut(tokens)
        if not starts or starts[0] or ends[0] == len(tokens):
            return  # none begins the prompt, or its end is not known
        segment, space = tokens[: ends[0]], self._exact.namespace
        if self._segments.register(segment, namespace=space) < len(segment):
            planes = [[plane[:, :, : ends[0]] for plane in planes] for planes in planes_of(cache)]
            held = window(space.layout, planes, ends[0])
            self._segments.store(segment, held, namespace=space, wait=False)


def _alike(lengths: Mapping[int, int]) -> Iterator[list[int]]:
    """Prompts of two and more that are blended at once: those whose lengths are near."""
    ordered = sorted(lengths, key=lambda index: -lengths[index])
    while ordered:
        near = [i for i in ordered if lengths[i] * _PADDED >= lengths[ordered[0]]]
        if len(near) > 1:
            yield sorted(near)
        ordered = ordered[len(near) :]


def _report(made: _Made) -> BlendReport:
    counts = made.counts
    used = counts.reused or counts.recomputed  # else nothing that was found arrived
    return BlendReport(
        BlendOutcome.BLENDED if used else BlendOutcome.FULL,
        counts.prefix,
        counts.reused,
        counts.recomputed,
        counts.computed,
        made.select_seconds,
        made.rotate_seconds,
    )
