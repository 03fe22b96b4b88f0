"""Computes documents whose KV is not stored, and stores it.

Stored KV is looked up and not computed. A long document is computed and stored in steps, so
that an interrupted run goes on there; short ones are computed together, padded on the right,
where none of their tokens can see it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.held import planes_of
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.warm.documents import Document
from hexkv.ports import PrefixCache

log = logging.getLogger("hexkv.hf")

_APART = 0.02
"""How far, of its length, the KV of a document in a batch may be from its KV alone: rounding
is less in bfloat16, and other positions or masks are far more."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of one document."""

    name: str
    tokens: int
    whole: int
    """Tokens of it that can be stored: whole chunks."""

    known: int
    """Tokens that were stored before."""

    stored: int
    """Tokens that are stored now, those before included."""


class Warmer:
    """Computes documents with a model, for a cache.

    Args:
        model: computes.
        cache: keeps; built for the model's namespace.
        chunk: tokens of a chunk.
        at_once: tokens that the model computes at a time, at least a chunk.
        progress: called with tokens that are done.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: PrefixCache,
        *,
        chunk: int,
        at_once: int,
        progress: Callable[[int], None],
    ) -> None:
        self._model = model
        self._cache = cache
        self._cached = CachedModel(model, cache)
        self._chunk = chunk
        self._step = max(chunk, at_once // chunk * chunk)
        self._progress = progress
        self._together: bool | None = None
        """True if documents may be computed together; ``None``: that was not tried."""

    def run(self, documents: Iterable[Document]) -> Iterator[Warmed]:
        """Compute and store *documents*; give the result of each, in some order.

        Raises:
            InvalidTokens: a document has a token that stands for an image or a sound.
        """
        waiting: list[tuple[Document, list[int]]] = []
        firsts: set[tuple[int, ...]] = set()

        def flush() -> Iterator[Warmed]:
            yield from self._batch(waiting)
            waiting.clear()
            firsts.clear()

        for document in documents:
            tokens = document.tokens[: len(document.tokens) // self._chunk * self._chunk]
            if not tokens:
                yield self._done(document, 0, 0)
                continue
            first = tuple(tokens[: self._chunk])
            longest = max([len(tokens), *(len(other) for _, other in waiting)])
            if first in firsts or longest * (len(waiting) + 1) > self._step:
                yield from flush()  # a document that begins alike is a hit then
            known = self._known(tokens)
            if known >= len(tokens):
                yield self._done(document, len(tokens), known)
            elif known or self._together is False or len(tokens) > self._step // 2:
                yield self._alone(document, tokens, known)
            else:
                waiting.append((document, tokens))
                firsts.add(first)
        yield from flush()

    def _alone(self, document: Document, tokens: list[int], known: int) -> Warmed:
        loaded = self._cached.load(tokens)
        at = loaded.hit_tokens
        while at < len(tokens):
            end = min(at + self._step, len(tokens))
            self._cached.extend(tokens[at:end], loaded.cache)
            self._cached.keep(tokens[:end], loaded.cache, skip=at // self._chunk * self._chunk)
            at = end
        return self._done(document, len(tokens), known)

    def _batch(self, waiting: Sequence[tuple[Document, list[int]]]) -> Iterator[Warmed]:
        """Compute documents of which nothing is known, at once."""
        if len(waiting) < 2 or self._together is False:
            for document, tokens in waiting:
                yield self._alone(document, tokens, 0)
            return
        cache = self._compute([tokens for _, tokens in waiting])
        if self._together is None:
            self._together = self._same(cache, [tokens for _, tokens in waiting])
            if not self._together:
                log.warning("the model computes texts otherwise together: each is computed alone")
                yield from self._batch(waiting)
                return
        for row, (document, tokens) in enumerate(waiting):
            self._cached.keep(tokens, cache, sequence=row)
            yield self._done(document, len(tokens), 0)

    def _compute(self, rows: Sequence[Sequence[int]]) -> DynamicCache:
        longest = max(map(len, rows))
        padded = [[*row, *[row[-1]] * (longest - len(row))] for row in rows]
        cache = DynamicCache()
        with torch.no_grad():
            self._model(
                input_ids=torch.tensor(padded, device=self._model.device),
                **with_cache(self._model, cache),
                use_cache=True,
                logits_to_keep=1,
            )
        return cache

    def _same(self, cache: DynamicCache, rows: Sequence[Sequence[int]]) -> bool:
        """True if the shortest of *rows* has the KV that it has alone."""
        row = min(range(len(rows)), key=lambda i: len(rows[i]))
        alone = planes_of(self._compute([rows[row]]))
        length = len(rows[row])
        for own, others in zip(alone, planes_of(cache), strict=True):
            for plane, other in zip(own, others, strict=True):
                want = plane[0].float()
                apart = (other[row, :, :length].float() - want).norm()
                if not apart <= _APART * want.norm():
                    return False
        return True

    def _done(self, document: Document, whole: int, known: int) -> Warmed:
        """The result of a document, by the tokens that the cache has now."""
        stored = self._known(document.tokens[:whole]) if whole else 0
        self._progress(len(document.tokens))
        return Warmed(document.name, len(document.tokens), whole, known, stored)

    def _known(self, tokens: Sequence[int]) -> int:
        self._cache.computes(None)  # chunks on slow tiers are known, too
        return self._cache.lookup(tokens, namespace=self._cached.namespace).hit_tokens
