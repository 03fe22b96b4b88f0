"""A model that computes a prompt from KV of its segments, and only chosen tokens anew."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import Lock
from typing import Self

import torch
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.blending.attention import AttentionWatch
from hexkv.adapters.hf.blending.cache import BlendedCache
from hexkv.adapters.hf.blending.hooks import decoder_layers, install
from hexkv.adapters.hf.blending.plan import (
    Blended,
    BlendedTogether,
    BlendPlan,
    KnownPrompt,
    Ready,
    Run,
)
from hexkv.adapters.hf.blending.progress import Pass, Progress
from hexkv.adapters.hf.blending.rotation import rotation_of
from hexkv.adapters.hf.cache import RequestKV
from hexkv.adapters.hf.prompts import tokens_of
from hexkv.adapters.hf.shape import compute_planes, placeholders_of, probe, relative_change
from hexkv.ports import InvalidRequest, InvalidTokens, LayoutMismatch

log = logging.getLogger("hexkv.hf")

Planes = Sequence[Sequence[torch.Tensor]]
"""``[layer][plane]`` of ``[1, heads, tokens, width]``."""

_TEXT = [1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0]

_SAME = 0.02
"""By how much logits may differ that come of the same KV, relative to their norm."""


class Blender:
    """Blends prompts of one model: each with one call of the model, through public hooks.

    The model is not patched, and other threads may use it at the same time. Close it, or use it
    as a context, to take the hooks off.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Put hooks on the layers of *model*, and try with a few tokens that they work.

        Raises:
            LayoutMismatch: the model's KV cannot be cached by prefix or moved to other
                positions, or its layers do not compute single rows.
        """
        attention = getattr(model.config, "_attn_implementation", None)
        if attention not in ("eager", "sdpa"):
            raise LayoutMismatch(
                f"{type(model).__name__} computes attention by {attention!r}, whose masks have no"
                ' rows: load it with attn_implementation="sdpa" or "eager"'
            )
        self.model = model
        self._placeholders = placeholders_of(model)
        self.shape = probe(model)
        """The shape of the model's cache."""

        self.rotation = rotation_of(model)
        """The rotation of its KV to other positions."""

        self._batches: bool | None = None
        self._trying = Lock()
        layers, owners = decoder_layers(model)
        self._handles = install(layers, owners)
        try:
            self._try()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    @property
    def layers(self) -> int:
        """The number of layers that keep KV: check layers are less."""
        return len(self.shape.layout.planes)

    def tokens_of(self, input_ids: torch.Tensor | Sequence[int]) -> list[int]:
        """The tokens of one prompt, ``[tokens]`` or ``[1, tokens]``.

        Raises:
            InvalidTokens: not one sequence of text, or of words that the model does not know.
        """
        tokens = tokens_of(input_ids, self._placeholders)
        words = int(self.model.config.get_text_config(decoder=True).vocab_size)
        if not 0 <= min(tokens) <= max(tokens) < words:
            raise InvalidTokens(f"tokens of this model are 0 to {words - 1}")
        return tokens

    def room(self, tokens: int, sequences: int = 1) -> RequestKV:
        """Uninitialised memory for the KV of *sequences* requests of *tokens* tokens."""
        return RequestKV(self.shape, tokens, sequences)

    def compute(self, input_ids: torch.Tensor | Sequence[int]) -> Planes:
        """KV of tokens with nothing before them, from position 0: of a segment, or a prefix.

        Raises:
            InvalidTokens: not one sequence of text.
        """
        tokens = self.tokens_of(input_ids)
        return compute_planes(self.model, tokens, DynamicCache())

    def place(self, room: RequestKV, start: int, planes: Planes, *, own: int = 0) -> Run:
        """Copy a segment's KV to its place in a prompt, with its keys rotated to there.

        Args:
            room: of the prompt.
            start: position of the first token in the prompt.
            planes: as :meth:`compute` gives them; ``[1, heads, tokens, width]`` each.
            own: position of the first token in its segment.
        """
        room.fill(planes, start)
        run = Run(start, start + planes[0][0].shape[2], own)
        self.rotation.rotate_all(room.planes, [run])
        return run

    def blend(
        self,
        input_ids: torch.Tensor | Sequence[int],
        room: RequestKV,
        *,
        prefix: int = 0,
        reused: Sequence[Run] = (),
        plan: BlendPlan | None = None,
        keep: int = 1,
        ready: Ready | None = None,
    ) -> Blended:
        """Compute a prompt to its end from the KV that *room* holds of it. *room* is used up.

        Args:
            input_ids: ``[tokens]`` or ``[1, tokens]``.
            room: of at least as many tokens; the rest is for decoding.
            prefix: tokens at the front whose KV in the room is exact.
            reused: tokens whose KV in the room was computed elsewhere, in order; those in
                the prefix, or among the last *keep* tokens, are not used.
            plan: which of them are computed all the same.
            keep: tokens at the end that are computed, and whose logits are given.
            ready: called before a layer's KV is used, where it is still being loaded.

        Raises:
            InvalidTokens: not one sequence of text.
            InvalidRequest: the prefix, the runs or the plan do not fit the prompt or the model.
        """
        tokens = self.tokens_of(input_ids)
        cache, made = self._compute([KnownPrompt(tokens, prefix, reused, ready)], room, plan, keep)
        return Blended(cache, made.logits[0], made.counts[0], made.select_seconds[0])

    def blend_together(
        self,
        prompts: Sequence[KnownPrompt],
        room: RequestKV,
        *,
        plan: BlendPlan | None = None,
        keep: int = 1,
    ) -> BlendedTogether:
        """Compute prompts to their ends, each from the KV that *room* holds of it.

        All of them end at the length of the longest one; the slots before a shorter one are zeroed.
        It is one call of the model if that computes rows of several prompts as it does those of
        one, which is tried once; else one call for each.

        Args:
            prompts: at least one.
            room: of as many sequences, and at least as many tokens as the longest prompt.
            plan: which of the reused tokens are computed all the same.
            keep: tokens at the end of each that are computed, and whose logits are given.

        Raises:
            InvalidTokens: a prompt is no sequence of text.
            InvalidRequest: the prefixes, the runs, the plan or the room do not fit.
        """
        prompts = [replace(prompt, tokens=self.tokens_of(prompt.tokens)) for prompt in prompts]
        if not prompts or room.planes[0][0].shape[0] != len(prompts):
            raise InvalidRequest(f"the room is of another number than {len(prompts)} prompts")
        width = max(len(prompt.tokens) for prompt in prompts)
        before = [width - len(prompt.tokens) for prompt in prompts]
        room.pad(before)
        if len(prompts) > 1 and self.takes_batches:
            return self._compute(prompts, room, plan, keep)[1]
        alone = [
            self._compute([prompt], room.of_sequence(index, before[index]), plan, keep)
            for index, prompt in enumerate(prompts)
        ]
        return BlendedTogether(
            torch.cat([made.logits for _, made in alone]),
            [made.counts[0] for _, made in alone],
            [made.select_seconds[0] for _, made in alone],
        )

    @property
    def takes_batches(self) -> bool:
        """True if one call of the model computes other rows of each prompt; the first access tries.

        A model does not if it hands its layers tensors with one entry per row for all prompts.
        """
        with self._trying:
            if self._batches is None:
                self._batches = self._try_batch()
            return self._batches

    def _compute(
        self,
        prompts: Sequence[KnownPrompt],
        room: RequestKV,
        plan: BlendPlan | None,
        keep: int,
    ) -> tuple[BlendedCache, BlendedTogether]:
        """Compute *prompts*, whose tokens were checked, in one call of the model.

        Raises:
            InvalidRequest: the prefixes, the runs, the plan or the room do not fit.
        """
        plan = plan or BlendPlan()
        if not -1 <= plan.check_layer < self.layers:
            raise InvalidRequest(
                f"there is no check layer {plan.check_layer}: choose one of -1 to {self.layers - 1}"
            )
        progress = Pass(
            [
                Progress(
                    len(prompt.tokens),
                    prefix=prompt.prefix,
                    reused=prompt.reused,
                    plan=plan,
                    keep=keep,
                    ready=prompt.ready,
                )
                for prompt in prompts
            ]
        )
        if room.planes[0][0].shape[2] < progress.tokens:
            raise InvalidRequest(f"the room is too small for {progress.tokens} tokens")
        cache = BlendedCache(room, progress)
        device = self.model.device
        before = torch.tensor(progress.before)[:, None]
        slots = torch.arange(progress.tokens)
        padded = bool(before.any())
        tokens = [
            [0] * (progress.tokens - len(prompt.tokens)) + [*prompt.tokens] for prompt in prompts
        ]
        needs = any(prompt.selector.needs_attention for prompt in progress.prompts)
        with torch.no_grad(), AttentionWatch(progress) if needs else nullcontext():
            output = self.model(
                input_ids=torch.tensor(tokens, device=device)[:, progress.known :],
                attention_mask=(slots >= before).long().to(device) if padded else None,
                position_ids=(slots - before).clamp_min(0).to(device)[:, progress.known :],
                **with_cache(self.model, cache),
                use_cache=True,
                logits_to_keep=keep,
            )
        cache.progress = None
        return cache, BlendedTogether(
            output.logits[:, -keep:],
            [prompt.counts() for prompt in progress.prompts],
            [prompt.select_seconds for prompt in progress.prompts],
        )

    def _try_batch(self) -> bool:
        """Compute single rows of two prompts over exact KV, as many of each as it happens."""
        texts = (_TEXT, _TEXT[2:])
        known = [
            KnownPrompt(_TEXT, 0, [Run(0, 5), Run(6, 9)]),
            KnownPrompt(_TEXT[2:], 3, [Run(4, 7, 4)]),
        ]
        room = self.room(len(_TEXT), len(texts))
        before = [len(_TEXT) - len(text) for text in texts]
        room.pad(before)
        wanted = []
        for index, text in enumerate(texts):
            room.of_sequence(index, before[index]).fill(self.compute(text))
            with torch.no_grad():
                tokens = torch.tensor([text], device=self.model.device)
                wanted.append(self.model(input_ids=tokens, logits_to_keep=1).logits[0, -1])
        try:
            _, made = self._compute(known, room, BlendPlan(0, 0.2, "first"), 1)
        except Exception as error:  # noqa: BLE001 - models' own code
            log.info("%s computes one prompt after the other: %s", type(self.model).__name__, error)
            return False
        changes = map(relative_change, wanted, made.logits[:, -1])
        return all(change <= _SAME for change in changes)

    def _try(self) -> None:
        """Compute single rows over exact KV, which must change nothing.

        Raises:
            LayoutMismatch: it does, or the model refuses.
        """
        name = type(self.model).__name__
        exact = self.compute(_TEXT)
        with torch.no_grad():
            known = self.model(input_ids=torch.tensor([_TEXT], device=self.model.device))
        for prefix, check in ((0, -1), (3, 0)):
            room = self.room(len(_TEXT))
            room.fill(exact)
            reused = [Run(prefix, 5), Run(6, 9)]
            plan = BlendPlan(check, 0.2, "first")
            try:
                made = self.blend(_TEXT, room, prefix=prefix, reused=reused, plan=plan, keep=2)
            except Exception as error:
                raise LayoutMismatch(
                    f"{name} does not compute single tokens of a prompt"
                    f" ({type(error).__name__}: {error})"
                ) from error
            change = relative_change(known.logits[0, -2:], made.logits)
            counts = made.counts
            if not counts.reused or counts.rows[-1] != counts.recomputed + counts.computed:
                raise LayoutMismatch(f"{name} computes every token in every layer")
            if not change <= _SAME:
                raise LayoutMismatch(
                    f"{name} computes single tokens of a prompt otherwise than all of them:"
                    f" logits differ by {change:.1%}"
                )
