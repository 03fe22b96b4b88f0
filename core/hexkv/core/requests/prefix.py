"""The longest prefix of a prompt that the tiers hold.

It ends with full chunks, or with a tail: the part of its last chunk that an earlier prompt stored.
A longer prompt has a full chunk there, with another key. So behind the full chunks that are found,
the keys of all possible tails are looked up, on the tiers that keep any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hexkv.core.keys.prompts import Prompt
from hexkv.core.tiers.matching import run_of
from hexkv.ports import ChunkKey, ChunkService, Deadline


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Prefix:
    """The longest prefix of a prompt that was found."""

    asked: Prompt
    whole: Prompt
    """Begins with the chunks found: the prompt, or the prompt cut at the tail that was found."""

    tiers: Sequence[str]
    """The name of the tier of each chunk that was found; empty if it was not queried."""

    short: bool = False
    """True if the last one is a tail in place of one of the prompt's own chunks."""

    @property
    def found(self) -> Prompt:
        """The chunks that were found, the last perhaps a shorter one."""
        return self.whole.part(0, len(self.tiers))

    @property
    def missing(self) -> ChunkKey | None:
        """The first of the prompt's own chunks that was not found; ``None`` if all were."""
        keys, whole = self.asked.keys, len(self.tiers) - self.short
        return keys[whole] if whole < len(keys) else None

    @property
    def tokens(self) -> int:
        """The end of the prefix, in tokens of the prompt."""
        return self.whole.ends[len(self.tiers) - 1] if self.tiers else 0

    def by_tier(self) -> dict[str, int]:
        """Tokens of the prefix on each tier."""
        names = self.tiers
        if not names:
            return {}
        starts, ends = self.whole.starts, self.whole.ends
        if names.count(names[0]) == len(names):  # usually all are on one
            return {names[0]: ends[len(names) - 1] - starts[0]}
        tokens: dict[str, int] = {}
        start = 0
        for name, run in groupby(names):
            end = start + len(list(run))
            tokens[name] = tokens.get(name, 0) + ends[end - 1] - starts[start]
            start = end
        return tokens


def find_prefix(
    chunks: ChunkService,
    prompt: Prompt,
    deadline: Deadline,
    *,
    served: bool = True,
    loads: bool = False,
    first: Sequence[str] = (),
) -> Prefix:
    """Return the longest prefix of *prompt*, whose *first* chunks are known to be on these tiers.

    With *served*, on tiers that serve requests; *loads*: it is loaded next.
    """
    if prompt.tails is None and not first:
        found = chunks.match(prompt.keys, deadline, served=served, loads=loads)
        if None in found:
            found = found[: found.index(None)]
        return Prefix(prompt, prompt, found)  # type: ignore[arg-type] # up to the first None
    full, sure = prompt.full, len(first)
    if sure >= len(prompt.keys):
        return Prefix(prompt, prompt, first)
    keys = [] if chunks.near else prompt.tails_of(full)[0]
    # One question to another process: its tails behind the last full chunk with the chunks.
    wanted = [*prompt.keys[sure:full], *keys] if sure or keys else prompt.keys[:full]
    there = chunks.match(wanted, deadline, served=served, loads=loads) if wanted else ()
    tiers = [*first, *run_of(there[: full - sure])]
    known = there[full - sure :] if keys and len(tiers) == full else None
    return find_tail(chunks, prompt, tiers, deadline, known, served=served, loads=loads)


def find_tail(
    chunks: ChunkService,
    prompt: Prompt,
    tiers: Sequence[str],
    deadline: Deadline,
    known: Sequence[str | None] | None = None,
    *,
    served: bool = True,
    loads: bool = False,
) -> Prefix:
    """Return the first chunks of *prompt*, which are on *tiers*, and the longest tail behind them.

    *known* are the tiers of the tails there, if they were queried before.
    """
    count = len(tiers)
    if prompt.tails is None:
        return Prefix(prompt, prompt, tiers)
    keys, ends = prompt.tails_of(count)
    if keys and known is None:
        size = prompt.tails.size
        known = chunks.match(keys, deadline, served=served, below=size, loads=loads)
    for key, end, tier in zip(keys, ends, known or (), strict=False):
        if tier is not None:
            short = end < prompt.ends[count]
            return Prefix(prompt, prompt.ending(count, key, end), [*tiers, tier], short)
    return Prefix(prompt, prompt, tiers)
