"""A model that computes a prompt from KV of its segments, and only as much anew as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from types import TracebackType
from typing import Self

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.blending.attention import AttentionWatch
from hexkv.adapters.hf.blending.cache import BlendedCache
from hexkv.adapters.hf.blending.hooks import install
from hexkv.adapters.hf.blending.plan import Blended, BlendPlan, Ready, Run
from hexkv.adapters.hf.blending.progress import Progress
from hexkv.adapters.hf.blending.rotation import rotation_of
from hexkv.adapters.hf.cache import Room
from hexkv.adapters.hf.prompts import tokens_of
from hexkv.adapters.hf.shape import compute_planes, placeholders_of, probe, relative_change
from hexkv.ports import InvalidRequest, InvalidTokens, LayoutMismatch

Planes = Sequence[Sequence[torch.Tensor]]
"""``[layer][plane]`` of ``[1, heads, tokens, width]``."""

_TEXT = [1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0]

_SAME = 0.02
"""By how much logits may differ that come of the same KV, relative to their norm."""


class Blender:
    """Blends prompts of one model: each with one call of the model, through public hooks.

    The model is not patched, and may be used by other threads meanwhile. Close it, or use it as a
    context, to take the hooks off.
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
        """What the model's cache looks like."""

        self.rotation = rotation_of(model)
        """How its KV moves to other positions."""

        layers, owners = _decoder_layers(model)
        self._handles = install(layers, owners)
        try:
            self._try()
        except BaseException:
            self.close()
            raise

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

    def room(self, tokens: int) -> Room:
        """Uninitialised memory for the KV of a request of so many tokens."""
        return Room(self.shape, tokens)

    def compute(self, input_ids: torch.Tensor | Sequence[int]) -> Planes:
        """KV of tokens with nothing before them, from position 0: of a segment, or a prefix.

        Raises:
            InvalidTokens: not one sequence of text.
        """
        tokens = self.tokens_of(input_ids)
        return compute_planes(self.model, tokens, DynamicCache())

    def place(self, room: Room, start: int, planes: Planes, *, own: int = 0) -> Run:
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
        room: Room,
        *,
        prefix: int = 0,
        reused: Sequence[Run] = (),
        plan: BlendPlan | None = None,
        keep: int = 1,
        ready: Ready | None = None,
    ) -> Blended:
        """Compute a prompt to its end from what *room* holds of it. *room* is used up.

        Args:
            input_ids: ``[tokens]`` or ``[1, tokens]``.
            room: of at least so many tokens; what is left is for decoding.
            prefix: tokens at the front whose KV in the room is exact.
            reused: tokens whose KV in the room was computed elsewhere, in order; what lies in
                the prefix, or among the last *keep* tokens, is not used.
            plan: which of them are computed all the same.
            keep: tokens at the end that are computed, and whose logits are given.
            ready: called before a layer's KV is used, where it is still being loaded.

        Raises:
            InvalidTokens: not one sequence of text.
            InvalidRequest: the prefix, the runs or the plan do not fit the prompt or the model.
        """
        tokens = self.tokens_of(input_ids)
        plan = plan or BlendPlan()
        if not -1 <= plan.check_layer < self.layers:
            raise InvalidRequest(
                f"there is no check layer {plan.check_layer}: choose one of -1 to {self.layers - 1}"
            )
        if room.planes[0][0].shape[2] < len(tokens):
            raise InvalidRequest(f"the room is too small for {len(tokens)} tokens")
        progress = Progress(
            len(tokens), prefix=prefix, reused=reused, plan=plan, keep=keep, ready=ready
        )
        cache = BlendedCache(room, progress)
        device = self.model.device
        watch = AttentionWatch(progress) if progress.selector.needs_attention else nullcontext()
        with torch.no_grad(), watch:
            output = self.model(
                input_ids=torch.tensor([tokens[progress.prefix :]], device=device),
                position_ids=torch.arange(progress.prefix, len(tokens), device=device)[None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=keep,
            )
        cache.progress = None
        return Blended(cache, output.logits[0, -keep:], progress.counts(), progress.select_seconds)

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


class _Owners(DynamicCache):
    """A cache that notes which module was under way when each of its layers was filled."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[int, int] = {}
        """By list of modules the index of the one that began last."""

        self.of_layers: list[dict[int, int]] = []

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append to a layer."""
        if layer_idx == len(self.of_layers):
            self.of_layers.append(dict(self.under_way))
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated


def _decoder_layers(model: PreTrainedModel) -> tuple[Sequence[nn.Module], list[int]]:
    """The decoder's layers, and which of them fills each layer of the cache.

    Raises:
        LayoutMismatch: no list of modules fills one layer after the other.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    cache = _Owners()

    def note(which: int, index: int) -> None:
        cache.under_way[which] = index

    handles = [
        layer.register_forward_pre_hook(lambda *_, which=which, index=index: note(which, index))
        for which, layers in enumerate(lists)
        for index, layer in enumerate(layers)
    ]
    try:
        compute_planes(model, _TEXT[:3], cache)
    finally:
        for handle in handles:
            handle.remove()
    for which, layers in enumerate(lists):
        owners = [under_way.get(which, -1) for under_way in cache.of_layers]
        if owners and owners[0] >= 0 and all(a <= b for a, b in pairwise(owners)):
            return list(layers), owners
    raise LayoutMismatch(f"{type(model).__name__} has no list of layers that fill its cache")
