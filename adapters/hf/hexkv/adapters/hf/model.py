"""A causal model that computes only what the cache does not know."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.cache import LoadedCache, Room, planes_of, window
from hexkv.adapters.hf.prompts import tokens_of
from hexkv.adapters.hf.shape import placeholders_of, probe
from hexkv.ports import InvalidRequest, PrefixCache


@dataclass(frozen=True, slots=True)
class Loaded:
    """A cache that holds as much of a prompt as was found, and has room for the rest."""

    cache: LoadedCache
    """For ``model(...)`` or ``model.generate(...)``; see :func:`with_cache`."""

    hit_tokens: int
    """Tokens in it. Always fewer than the prompt has: the last one's logits are needed."""

    known_tokens: int
    """Tokens of the prompt that the engine holds; the last one may be among them."""

    loaded_bytes: int

    tiers: Mapping[str, int]
    """Tokens by the tier that served them."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt, computed to its end."""

    cache: DynamicCache
    """KV of the whole prompt."""

    logits: torch.Tensor
    """``[vocabulary]``, of the first new token."""

    hit_tokens: int
    """Tokens that were not computed."""

    stored_tokens: int
    """Tokens that the engine did not hold before."""

    loaded_bytes: int
    tiers: Mapping[str, int]

    load_seconds: float
    compute_seconds: float
    store_seconds: float


@dataclass(frozen=True, slots=True)
class Generated:
    """A prompt's continuation."""

    tokens: list[int]
    prefill: Prefill


class CachedModel:
    """A transformers causal model with a cache engine. One prompt of text at a time.

    The engine must have been built for ``namespace_of_model(model)``. As safe to share
    between threads as the model itself.
    """

    def __init__(self, model: PreTrainedModel, engine: PrefixCache) -> None:
        """Put *engine* under *model*.

        Raises:
            LayoutMismatch: the model's KV cannot be cached by prefix.
        """
        self._model = model
        self._engine = engine
        self._shape = probe(model)
        self._placeholders = placeholders_of(model)

    def load(
        self, input_ids: torch.Tensor | Sequence[int], *, room: int = 0, sequences: int = 1
    ) -> Loaded:
        """A cache with what the engine holds of a prompt.

        Args:
            input_ids: ``[tokens]`` or ``[1, tokens]``.
            room: tokens to reserve memory for beyond the prompt.
            sequences: that continue the prompt at once: the greater of ``num_beams`` and
                ``num_return_sequences``. All begin with what was loaded.

        Raises:
            InvalidTokens: not one sequence of at least one token, or one that stands for an
                image or a sound, whose KV its id does not tell.
            InvalidRequest: *sequences* is less than one.
        """
        if sequences < 1:
            raise InvalidRequest(f"sequences must be at least 1, not {sequences}")
        tokens = self._text(input_ids)
        memory = Room(self._shape, len(tokens) + room, sequences)
        found = self._engine.retrieve(tokens, memory.window(len(tokens)))
        hit = min(found.hit_tokens, len(tokens) - 1)
        cache = memory.cache(hit, len(tokens))
        return Loaded(cache, hit, found.hit_tokens, found.loaded_bytes, dict(found.tiers))

    def save(
        self,
        input_ids: torch.Tensor | Sequence[int],
        cache: DynamicCache,
        *,
        skip: int = 0,
        sequence: int = 0,
    ) -> int:
        """Store the KV that *cache* holds of *input_ids*. How many tokens were new.

        Args:
            input_ids: what the first tokens of the cache were computed from.
            cache: one that keeps every token in every layer, as a plain ``DynamicCache()``
                does, and one of :meth:`load`.
            skip: tokens at the front that the engine holds already.
            sequence: which one of those in the cache.

        Raises:
            InvalidTokens: as for :meth:`load`.
            InvalidRequest: the cache has another shape than the model's, or fewer tokens.
        """
        tokens = self._text(input_ids)
        mine = [[plane[sequence : sequence + 1] for plane in planes] for planes in planes_of(cache)]
        kept = window(self._shape.layout, mine, len(tokens))
        return self._engine.store(tokens, kept, skip=skip).stored_tokens

    def prefill(self, input_ids: torch.Tensor | Sequence[int], *, room: int = 0) -> Prefill:
        """Logits and KV of a prompt: loaded as far as possible, computed from there, stored.

        Arguments and errors as for :meth:`load`, of one sequence.
        """
        tokens = self._text(input_ids)
        began = time.perf_counter()
        loaded = self.load(tokens, room=room)
        computing = time.perf_counter()
        logits = self.extend(tokens[loaded.hit_tokens :], loaded.cache)
        storing = time.perf_counter()
        stored = 0
        if loaded.known_tokens < len(tokens):
            stored = self.save(tokens, loaded.cache, skip=loaded.known_tokens)
        return Prefill(
            cache=loaded.cache,
            logits=logits,
            hit_tokens=loaded.hit_tokens,
            stored_tokens=stored,
            loaded_bytes=loaded.loaded_bytes,
            tiers=loaded.tiers,
            load_seconds=computing - began,
            compute_seconds=storing - computing,
            store_seconds=time.perf_counter() - storing,
        )

    def generate(self, input_ids: torch.Tensor | Sequence[int], max_new_tokens: int) -> Generated:
        """The prompt's greedy continuation, exactly *max_new_tokens* long.

        For anything richer give the cache of :meth:`load` to ``model.generate``.

        Raises:
            InvalidRequest: *max_new_tokens* is less than one.
            InvalidTokens: as for :meth:`load`.
        """
        if max_new_tokens < 1:
            raise InvalidRequest(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        prefill = self.prefill(input_ids, room=max_new_tokens)
        new = [int(prefill.logits.argmax())]
        while len(new) < max_new_tokens:
            new.append(int(self.extend(new[-1:], prefill.cache).argmax()))
        return Generated(new, prefill)

    def extend(self, tokens: Sequence[int], cache: DynamicCache) -> torch.Tensor:
        """Compute *tokens* behind those that *cache* holds, and add their KV to it.

        Returns:
            ``[vocabulary]``: logits of what follows the last one.
        """
        with torch.no_grad():
            output = self._model(
                input_ids=torch.tensor([tokens], device=self._model.device),
                **with_cache(self._model, cache),
                use_cache=True,
                logits_to_keep=1,
            )
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    def _text(self, input_ids: torch.Tensor | Sequence[int]) -> list[int]:
        return tokens_of(input_ids, self._placeholders)
