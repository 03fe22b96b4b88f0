"""A causal model that computes only tokens that the cache does not hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import Cache, DynamicCache, PreTrainedModel

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.cache import LoadedCache, RequestKV, window
from hexkv.adapters.hf.held import planes_of, refuse_other_tokens
from hexkv.adapters.hf.live import Identity, LiveIdentity
from hexkv.adapters.hf.prompt_times import PromptTimes
from hexkv.adapters.hf.prompts import tokens_of
from hexkv.adapters.hf.shape import placeholders_of
from hexkv.ports import InvalidRequest, Namespace, PrefixCache

log = logging.getLogger("hexkv.hf")


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

    The engine must have been built for ``namespace_of_model(model)``. Weights that change in
    memory afterwards are noticed by the next call, and have another namespace. As safe to share
    between threads as the model itself.
    """

    def __init__(self, model: PreTrainedModel, engine: PrefixCache) -> None:
        """Put *engine* under *model*.

        Raises:
            LayoutMismatch: the model's KV cannot be cached by prefix.
        """
        self._model = model
        self._engine = engine
        self._identity = LiveIdentity(model, engine.namespace)
        self._times = PromptTimes()
        self._placeholders = placeholders_of(model)

    @property
    def namespace(self) -> Namespace:
        """The namespace of the model's weights now; the engine's, until they change in memory.

        Raises:
            LayoutMismatch: the model is in training mode, or can no longer be cached.
        """
        return self._identity.now().namespace

    def load(
        self, input_ids: torch.Tensor | Sequence[int], *, room: int = 0, sequences: int = 1
    ) -> Loaded:
        """Return a cache with the KV that the engine holds of a prompt.

        Args:
            input_ids: ``[tokens]`` or ``[1, tokens]``.
            room: tokens to reserve memory for beyond the prompt.
            sequences: that continue the prompt at once: the greater of ``num_beams`` and
                ``num_return_sequences``. All begin with the loaded KV.

        Raises:
            InvalidTokens: not one sequence of at least one token, or one that stands for an
                image or a sound, whose KV does not follow from its id.
            InvalidRequest: *sequences* is less than one.
            LayoutMismatch: the model is in training mode, or can no longer be cached.
        """
        if sequences < 1:
            raise InvalidRequest(f"sequences must be at least 1, not {sequences}")
        tokens = self._text(input_ids)
        identity = self._identity.now()
        memory = RequestKV(identity.shape, len(tokens) + room, sequences)
        self._engine.computes(self._times.rate(len(tokens)))
        found = self._engine.retrieve(
            tokens, memory.window(len(tokens)), namespace=self._given(identity)
        )
        hit = min(found.hit_tokens, len(tokens) - 1)
        cache = memory.cache(hit, len(tokens))
        cache.namespace = identity.namespace
        cache.timer = self._times.timer(identity.shape.devices)
        return Loaded(cache, hit, found.hit_tokens, found.loaded_bytes, dict(found.tiers))

    def save(
        self,
        input_ids: torch.Tensor | Sequence[int],
        cache: Cache,
        *,
        skip: int = 0,
        sequence: int = 0,
    ) -> int:
        """Store the KV that *cache* holds of *input_ids*. How many tokens were new.

        The cache is checked: the number of tokens that each layer counts and holds, and the KV of
        its first layer, which is computed again from these tokens.

        Args:
            input_ids: the tokens that the beginning of the cache was computed from, by the weights
                that the model has now.
            cache: one that keeps every token in every layer, as a plain ``DynamicCache()``
                does, and one of :meth:`load`.
            skip: tokens at the front that the engine holds already.
            sequence: which one of those in the cache.

        Returns:
            tokens that the engine did not hold before; 0, with a line in the log, if weights
            changed since the last call, so that a cache of the host's may be of former ones.

        Raises:
            InvalidTokens: as for :meth:`load`.
            InvalidRequest: the cache has another shape than the model's, fewer tokens or others;
                it was loaded for other weights, or is blended.
        """
        tokens = self._text(input_ids)
        last = self._identity.last
        identity = self._identity.now()
        if isinstance(cache, LoadedCache):
            _refuse_other_source(cache, identity.namespace)
        elif identity is not last:
            log.warning("A cache is not stored: the model's former weights may have computed it.")
            return 0
        planes = _row(planes_of(cache), sequence, len(tokens))
        refuse_other_tokens(self._model, tokens, planes[0])
        return self._store(identity, tokens, planes, skip)

    def keep(self, tokens: Sequence[int], cache: Cache, *, skip: int = 0, sequence: int = 0) -> int:
        """:meth:`save` for a cache that the caller filled with *tokens* itself.

        Its tokens are not compared, so the model is not run. Nothing is stored of a cache that
        was loaded for other weights.
        """
        identity = self._identity.now()
        if isinstance(cache, LoadedCache) and cache.namespace != identity.namespace:
            return 0
        planes = _row(planes_of(cache), sequence, len(tokens))
        return self._store(identity, self._text(tokens), planes, skip)

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
            stored = self.keep(tokens, loaded.cache, skip=loaded.known_tokens)
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
            ``[vocabulary]``: logits of the token after the last one.
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

    def _store(
        self,
        identity: Identity,
        tokens: list[int],
        planes: Sequence[Sequence[torch.Tensor]],
        skip: int,
    ) -> int:
        kept = window(identity.shape.layout, planes, len(tokens))
        stored = self._engine.store(tokens, kept, skip=skip, namespace=self._given(identity))
        return stored.stored_tokens

    def _given(self, identity: Identity) -> Namespace | None:
        """The namespace for calls of the engine; ``None`` for its own."""
        same = identity.namespace is self._engine.namespace
        return None if same else identity.namespace

    def _text(self, input_ids: torch.Tensor | Sequence[int]) -> list[int]:
        return tokens_of(input_ids, self._placeholders)


def _refuse_other_source(cache: LoadedCache, namespace: Namespace) -> None:
    """Refuse to store KV of *cache* that is not exact KV of *namespace*.

    Raises:
        InvalidRequest: names the KV that it holds instead.
    """
    if cache.namespace is None:
        raise InvalidRequest("the cache holds blended KV, which is approximate: it is not stored")
    if cache.namespace != namespace:
        raise InvalidRequest(
            f"the cache was loaded for weights {cache.namespace.revision!r}, and the model has"
            f" {namespace.revision!r} now: load the prompt again"
        )


def _row(
    planes: Sequence[Sequence[torch.Tensor]], sequence: int, tokens: int
) -> list[list[torch.Tensor]]:
    """``[layer][plane]`` of one sequence of a cache, which holds at least *tokens* tokens.

    Raises:
        InvalidRequest: there is no such sequence, or it is shorter.
    """
    sequences, _, held, _ = planes[0][0].shape if planes else (0, 0, 0, 0)
    if not 0 <= sequence < sequences:
        raise InvalidRequest(f"the cache holds {sequences} sequences, and no number {sequence}")
    if held < tokens:
        raise InvalidRequest(
            f"layer 0 of the cache holds the KV of {held} tokens, fewer than the {tokens} to store:"
            " a model computes no KV of the last token that it generates"
        )
    return [[plane[sequence : sequence + 1] for plane in layer] for layer in planes]
