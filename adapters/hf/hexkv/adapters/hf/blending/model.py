"""A model over a cache, whose prompts are made of segments in any order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from types import TracebackType
from typing import Self

import torch
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.blending.blender import Blender
from hexkv.adapters.hf.blending.gate import BlendGate
from hexkv.adapters.hf.blending.plan import Blended, BlendPlan
from hexkv.adapters.hf.cache import Room, planes_of, window
from hexkv.adapters.hf.model import CachedModel
from hexkv.ports import (
    BlendOutcome,
    BlendReport,
    InvalidRequest,
    LayeredSegments,
    PrefixCache,
    PromptParts,
)

log = logging.getLogger("hexkv.hf")

_ATTEMPTS = 2
"""Times that a prompt is blended whose segments turn out to be damaged."""


@dataclass(frozen=True, slots=True)
class BlendedPrefill:
    """A prompt, blended or computed to its end."""

    cache: DynamicCache
    """KV of the whole prompt, to go on decoding from; approximate if it was blended."""

    logits: torch.Tensor
    """``[vocabulary]``, of the first new token."""

    report: BlendReport
    """What became of the prompt, and its tokens by kind."""

    share: float
    """Tokens times layers that were computed, of those of the whole prompt."""

    seconds: float


class _Lost(Exception):
    """A segment turned out to be damaged after it was counted on."""


class BlendingModel:
    """A transformers causal model with a cache of prefixes and segments. A context manager.

    Prompts are blended as *gate* allows; what it does not allow is computed in full, from the
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
        self._blender = Blender(model)
        self._engine = engine
        self._segments = engine.segments
        self._gate = gate

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off the model. The engine stays open."""
        self._blender.close()

    def precompute(self, segments: Iterable[torch.Tensor | Sequence[int]]) -> int:
        """Compute segments alone and store them; how many tokens of them the cache has then.

        What is there is not computed again.

        Raises:
            InvalidTokens: one is not one sequence of text.
        """
        stored = 0
        for segment in segments:
            tokens = self._blender.tokens_of(segment)
            known = self._segments.register(tokens)
            if known < len(tokens):
                planes = self._blender.compute(tokens)
                held = window(self._blender.shape.layout, planes, len(tokens))
                self._segments.store(tokens, held)
                known = self._segments.register(tokens)
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
        tokens = self._blender.tokens_of(input_ids)
        plan, why = self._gate.plan, self._gate.closed
        made: tuple[Blended, float] | None = None
        if plan is not None:
            made, why = self._blended(tokens, plan, room)
        checked = made is not None and self._gate.due()
        if made is None or checked:
            full = self._exact.prefill(tokens, room=room)
            self._keep_first(tokens, full.cache)
            cache, logits = full.cache, full.logits
            kl = None
            if made is not None:
                why, kl = BlendOutcome.CHECKED, divergence(full.logits, made[0].logits[-1])
                self._gate.compared(kl)
            report = BlendReport(
                why or BlendOutcome.FULL,
                prefix=full.hit_tokens,
                computed=len(tokens) - full.hit_tokens,
                kl=kl,
            )
            share = 1 - full.hit_tokens / len(tokens)
        else:
            blended, rotating = made
            counts = blended.counts
            cache, logits, share = blended.cache, blended.logits[-1], counts.share
            used = counts.reused or counts.recomputed  # or nothing of what was found arrived
            report = BlendReport(
                BlendOutcome.BLENDED if used else BlendOutcome.FULL,
                counts.prefix,
                counts.reused,
                counts.recomputed,
                counts.computed,
                blended.select_seconds,
                rotating,
            )
        self._segments.report(report)
        return BlendedPrefill(cache, logits, report, share, time.perf_counter() - began)

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

    def _blended(
        self, tokens: list[int], plan: BlendPlan, room: int
    ) -> tuple[tuple[Blended, float] | None, BlendOutcome | None]:
        """The prompt from its segments and how long they were rotated; or why not."""
        recomputed = plan.recomputed(self._blender.layers)
        for _ in range(_ATTEMPTS):
            parts = self._segments.find(tokens, recomputed=recomputed)
            if not parts.segments:
                known = recomputed and self._segments.find(tokens).segments
                return None, BlendOutcome.NOT_WORTH if known else BlendOutcome.FULL
            try:
                return self._from(tokens, parts, plan, room), None
            except _Lost as error:  # what is damaged is found no more
                log.warning("a prompt is blended anew: %s", error)
        return None, BlendOutcome.FAILED

    def _from(
        self, tokens: list[int], parts: PromptParts, plan: BlendPlan, room: int
    ) -> tuple[Blended, float]:
        """The prompt from *parts*, and for how long they were rotated.

        Raises:
            _Lost: a part did not arrive.
        """
        memory = self._blender.room(len(tokens) + room)
        device = memory.window(len(tokens))
        with (
            self._segments.retrieve_layers(tokens, device, parts=parts) as layers,
            _Loading(self._blender, memory, layers) as loading,
        ):
            made = self._blender.blend(
                tokens,
                memory,
                prefix=loading.parts.prefix,
                reused=loading.runs,
                plan=plan,
                ready=loading.wait,
            )
            layers.result()
        self._save_head(tokens, loading.parts, made.cache)
        return made, loading.rotate_seconds

    def _save_head(self, tokens: list[int], parts: PromptParts, cache: DynamicCache) -> None:
        """Store what stands before every segment: its KV is exact, as it saw no other one's."""
        head = parts.segments[0].start if parts.segments else len(tokens)
        if head > parts.prefix:
            self._exact.save(tokens[:head], cache, skip=parts.prefix)

    def _keep_first(self, tokens: list[int], cache: DynamicCache) -> None:
        """Store the first segment: with nothing before it, its KV is that of it alone."""
        starts, ends = self._segments.cut(tokens)
        if not starts or starts[0] or ends[0] == len(tokens):
            return  # none begins the prompt, or nobody can say where it ends
        segment = tokens[: ends[0]]
        if self._segments.register(segment) < len(segment):
            planes = [[plane[:, :, : ends[0]] for plane in planes] for planes in planes_of(cache)]
            held = window(self._blender.shape.layout, planes, ends[0])
            self._segments.store(segment, held, wait=False)


class _Loading:
    """KV of one prompt that is loaded and rotated by a thread of its own, ahead of the model.

    A context manager: the thread ends with it. Each of its steps ends by the engine's deadline.
    """

    def __init__(self, blender: Blender, room: Room, layers: LayeredSegments) -> None:
        """Load the first layer, which tells most of what is missing; begin with the others.

        Raises:
            InvalidRequest: the engine refuses.
        """
        self._blender = blender
        self._room = room
        self._layers = layers
        self._turn = Condition()
        self._loaded = -1
        self._over = False
        self._error: BaseException | None = None
        self.rotate_seconds = 0.0
        next(layers)
        self.parts: PromptParts = layers.parts
        self.runs = self.parts.segments
        self._rotate(0)
        self._thread = Thread(target=self._load, name="hexkv-blend", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._turn:
            self._over = True
        self._thread.join()

    def wait(self, layer: int) -> None:
        """Return once the KV of *layer* is in the room, rotated to its place.

        Raises:
            _Lost: some of it did not come.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._loaded >= layer or self._error is not None)
            if self._loaded < layer and self._error is not None:
                raise self._error

    def _load(self) -> None:
        """Load layer after layer. Their KV has a place already, so nothing bounds how far ahead."""
        try:
            while self._loaded + 1 < self._blender.layers and not self._over:
                self._advance()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            with self._turn:
                self._error = error
                self._turn.notify_all()

    def _advance(self) -> None:
        """Load the next layer.

        Raises:
            _Lost: less of it came than of those before.
        """
        layer = next(self._layers)
        if self._layers.parts != self.parts:
            raise _Lost(f"KV of a segment was lost at layer {layer}")
        self._rotate(layer)

    def _rotate(self, layer: int) -> None:
        began = time.perf_counter()
        self._blender.rotation.rotate(layer, self._room.planes[layer], self.runs)
        self.rotate_seconds += time.perf_counter() - began
        with self._turn:
            self._loaded = layer
            self._turn.notify_all()


def divergence(full: torch.Tensor, blended: torch.Tensor) -> float:
    """Kullback-Leibler divergence of *blended* from *full*, in nats: the mean over all rows.

    Args:
        full: logits ``[..., vocabulary]``.
        blended: likewise.
    """
    wanted = functional.log_softmax(full.double(), -1)
    got = functional.log_softmax(blended.double(), -1)
    rows = (wanted.exp() * (wanted - got)).sum(-1)
    return float(rows.mean().clamp_min(0))
