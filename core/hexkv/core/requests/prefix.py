"""The longest prefix of a prompt that the tiers hold.

It ends with full chunks, or with a tail: the part of its last chunk that an earlier prompt stored.
A longer prompt has a full chunk there, with another key. So behind the full chunks that are found,
the keys of all possible tails are looked up, on the tiers that keep any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hexkv.core.keys.prompts import Prompt
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.matching import Found, find_tiers_soon, run_of
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Prefix:
    """The longest prefix of a prompt that was found."""

    asked: Prompt
    whole: Prompt
    """Begins with the chunks found: the prompt, or the prompt cut at the tail that was found."""

    tiers: Sequence[Tier]
    """The tier of each chunk that was found."""

    short: bool = False
    """True if the last one is a tail in place of one of the prompt's own chunks."""

    @property
    def found(self) -> Prompt:
        """The chunks that were found, the last perhaps a shorter one."""
        return self.whole.part(0, len(self.tiers))

    @property
    def missing(self) -> ChunkKey | None:
        """The first of the prompt's own chunks that was not found; ``None`` if all were."""
        whole = len(self.tiers) - self.short
        return self.asked.keys[whole] if whole < len(self.asked.keys) else None

    @property
    def tokens(self) -> int:
        """The end of the prefix, in tokens of the prompt."""
        return self.whole.ends[len(self.tiers) - 1] if self.tiers else 0


def match_prefix(
    stack: TierStack, prompt: Prompt, deadline: Deadline, tiers: Sequence[Tier] | None = None
) -> Prefix:
    """Return the longest prefix of *prompt* on *tiers*, by default those that serve requests."""
    tiers = stack.serving if tiers is None else tiers
    if prompt.tails is None:
        run = run_of(stack.find_tiers(prompt.keys, deadline, tiers))
        return Prefix(prompt, prompt, run)
    run = run_of(stack.find_tiers(prompt.keys[: prompt.full], deadline, tiers))
    keys, ends = prompt.tails_of(len(run))
    found = stack.find_tiers(keys, deadline, keeping(tiers, prompt)) if keys else ()
    return _prefix(prompt, run, keys, ends, found)


def match_prefix_soon(
    stack: TierStack, prompt: Prompt, deadline: Deadline, then: Callable[[Prefix], None]
) -> None:
    """Call *then* with the result of :func:`match_prefix`, without waiting for any store."""
    tiers = stack.serving

    def go_on(whole: Found) -> None:
        run = run_of(whole)
        keys, ends = prompt.tails_of(len(run))

        def end(found: Found) -> None:
            then(_prefix(prompt, run, keys, ends, found))

        if keys:
            find_tiers_soon(keeping(tiers, prompt), keys, deadline, end)
        else:
            end(())

    find_tiers_soon(tiers, prompt.keys[: prompt.full], deadline, go_on)


def find_chunks(stack: TierStack, prompt: Prompt, deadline: Deadline, *, asks: bool) -> Found:
    """Return the first tier that holds each chunk of *prompt*; see :meth:`TierStack.find_tiers`.

    Tiers that keep no tails are not queried for one: their stores may take time to answer.
    Read-only tiers, which others fill, are not queried either: their chunks may disappear, so
    this cache keeps its own.
    """
    own = [tier for tier in stack.tiers if not tier.calls.read_only]
    if prompt.tails is None:
        return stack.find_tiers(prompt.keys, deadline, own, asks=asks)
    full = prompt.full
    found = stack.find_tiers(prompt.keys[:full], deadline, own, asks=asks)
    if full == len(prompt):
        return found
    tiers = keeping(own, prompt)
    return [*found, *stack.find_tiers(prompt.keys[full:], deadline, tiers, asks=asks)]


def keeping(tiers: Sequence[Tier], prompt: Prompt) -> Sequence[Tier]:
    """Return those of *tiers* that keep tails of *prompt*."""
    size = prompt.tails.size if prompt.tails is not None else 0
    return [tier for tier in tiers if tier.rules.shortest < size]


def _prefix(
    prompt: Prompt,
    run: Sequence[Tier],
    keys: Sequence[ChunkKey],
    ends: Sequence[int],
    found: Found,
) -> Prefix:
    count = len(run)
    for key, end, tier in zip(keys, ends, found, strict=False):
        if tier is not None:
            short = end < prompt.ends[count]
            return Prefix(prompt, prompt.ending(count, key, end), [*run, tier], short)
    return Prefix(prompt, prompt, run)
