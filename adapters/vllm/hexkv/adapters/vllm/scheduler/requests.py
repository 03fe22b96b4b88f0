"""One request's way through the cache, on the scheduler side. No I/O in here.

::

    asked -> answered -> (waits for blocks, is asked again and again) -> loading -> computing
                              ^                                             |
                              +----- preempted: everything is asked anew ---+

Only KV that the workers have reported, or are about to learn of, counts as stored or loaded here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from hexkv.adapters.vllm.messages import Kept, Load, Missed, Save, Scope
from hexkv.ports import Reason

PAD = 0xFFFF_FFFF
"""Fills a prompt's last block up where that block is kept, too: no vocabulary has this token."""


class Request(Protocol):
    """The attributes of vLLM's request that are used here."""

    request_id: str
    num_computed_tokens: int

    @property
    def all_token_ids(self) -> Sequence[int]: ...

    @property
    def block_hashes(self) -> Sequence[bytes]: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """How vLLM and the engine cut prompts, and how vLLM runs."""

    chunk: int
    """Tokens in a chunk: whole blocks."""

    block: int
    """Tokens in a block."""

    checked_later: bool = False
    """True if a load can fail unseen by the rank that stores KV computed from it: on another
    rank, or in a step that was planned before the failure was known."""

    events: bool = False
    """True if KV events are published."""

    tail: int = 0
    """Tokens between the places where a prompt's last chunk may end: whole blocks. 0: no chunk is
    shorter than the others."""

    saves_within: bool = False
    """True if a step ends with its saves, so that later ones need not keep blocks for them."""

    @property
    def keeps_blocks(self) -> bool:
        """True if the last chunk of a prompt can end with any block of it."""
        return (self.tail or self.chunk) == self.block


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part in a step."""

    request: str
    computed: int
    """Tokens computed before the step."""

    scheduled: int
    """Tokens that the step computes."""

    blocks: Sequence[int]
    replaces: bool
    """True if *blocks* are all there are; otherwise they come after those known."""


class Allowed(NamedTuple):
    """The permissions of a request."""

    reads: bool = False
    writes: bool = False
    hands_over: bool = False
    """True if all of its prompt is stored, for an engine that goes on with it."""

    takes_over: bool = False
    """True if all of its prompt is looked up, which another engine has computed."""

    holds: bool = False
    """True if its stored KV is kept for that engine, which receives the name of the pin."""

    kept: Kept = Kept()
    """The KV that was kept for this request."""

    decode_node: str = ""
    """The node that receives the prompt's KV by push; empty: none."""

    prefill_node: str = ""
    """The node to ask for the prompt's KV; empty: some are asked."""


@dataclass(frozen=True, slots=True)
class Found:
    """The tokens of a request that the tiers hold."""

    tokens: int = 0
    """Tokens from its beginning, whole chunks; the last one may be a tail."""

    tiers: Mapping[str, int] = field(default_factory=dict)
    """Tokens by tier, in the order of the prompt."""

    why: Reason = Reason.ABSENT
    """The reason of the first miss after them."""

    def between(self, start: int, end: int) -> dict[str, int]:
        """Tokens ``[start, end)`` by tier."""
        shares: dict[str, int] = {}
        at = 0
        for tier, tokens in self.tiers.items():
            share = min(end, at + tokens) - max(start, at)
            if share > 0:
                shares[tier] = share
            at += tokens
        return shares


def found_in(answer: Mapping[str, object]) -> Found:
    """The tokens that a rank holds, by its answer."""
    hit, tiers = answer.get("hit"), answer.get("tiers")
    if not isinstance(hit, int) or not isinstance(tiers, dict):
        return Found(why=Reason.FAILED)
    try:
        why = Reason(str(answer.get("why")))
    except ValueError:
        why = Reason.ABSENT
    return Found(hit, {str(name): int(tokens) for name, tokens in tiers.items()}, why)


def common(answers: Sequence[Found], chunk: int) -> Found:
    """Return the tokens that every rank holds. All must compute those that one of them lacks.

    A rank that holds more than another one's tail holds another tail: they share full chunks.
    """
    least = min(answers, key=lambda found: found.tokens, default=Found())
    if any(found.tokens != least.tokens for found in answers):
        return replace(least, tokens=least.tokens // chunk * chunk)
    return least


@dataclass(slots=True)
class Tracked:
    """A request that the scheduler knows."""

    request: Request
    scope: Scope
    reads: bool
    writes: bool
    later: bool = False
    """True if its loads happen between steps, and it waits for them."""

    hands_over: bool = False
    """True if its last block is stored before it is full, for an engine that goes on with it."""

    takes_over: bool = False
    """True if such a block is looked for."""

    holds: bool = False
    """True if its stored KV is kept for that engine."""

    kept: Kept = Kept()  # noqa: RUF009 - frozen
    """The KV that was kept for it, or is kept for its decoder."""

    decode_node: str = ""
    prefill_node: str = ""
    """See :class:`Allowed`."""

    hold: str = ""
    """The name of the pin at ``decode_node``."""

    naming: int = 0
    """The number of the question for the name of this node at other nodes."""

    announced: bool = False
    """True if its prompt was announced to other engines."""

    waits_until: float = 0.0
    coming: set[int] = field(default_factory=set)
    """Ranks for which it waits, because another engine computes the KV that they lack."""

    found: Found | None = None
    """``None`` until there is an answer."""

    asked_at: float = 0.0
    queries: dict[int, int] = field(default_factory=dict)
    """By rank, the numbers of the questions under way."""

    asked: int = 0
    """Tokens of the chunks in its last lookup."""

    answers: list[Found] = field(default_factory=list)
    """Answers of the other ranks."""

    held: bool = False
    """True if the workers hold pins and a prefetch for it."""

    local: int = 0
    """Tokens that vLLM itself had at its last question."""

    saved: int = 0
    """Tokens that need not be stored: they are, or will be after the step."""

    known: int = 0
    """Computed tokens that the scheduler's steps so far have, or will have."""

    blocks: list[int] = field(default_factory=list)
    allocated: bool = False
    """True if blocks were allocated since its last lookup."""

    @property
    def waits(self) -> bool:
        """True while it waits for an answer of a rank, or of another engine."""
        return bool(self.queries or self.coming)

    def stop(self, why: Reason) -> None:
        """Load, store and hand over nothing more of it."""
        self.reads = self.writes = self.holds = self.hands_over = self.takes_over = False
        self.answers.clear()
        self.coming.clear()
        self.found = Found(why=why)

    def forget(self) -> None:
        """Drop the result of its lookup, which may be outdated."""
        self.found = None
        self.queries.clear()
        self.answers.clear()
        self.coming.clear()
        self.allocated = False

    def missed(self, chunk: int) -> list[Missed]:
        """Return the tokens that neither vLLM nor the tiers have, in chunks of *chunk* tokens."""
        found = self.found
        here = max(self.local, found.tokens if found is not None else 0)
        if found is None or here >= self.asked:
            return []
        end = min(self.asked, (here // chunk + 1) * chunk)
        rest = -(-(self.asked - end) // chunk)
        missed = [Missed(found.why, 1, end - here)]
        if rest:
            behind = found.why if found.why.gone else Reason.BEHIND_A_MISS
            missed.append(Missed(behind, rest, self.asked - end))
        return missed

    def tokens(self, end: int) -> bytes:
        """The first *end* tokens, as uint32 of this machine; ``PAD`` behind the last one."""
        known = array("I", self.request.all_token_ids[:end])
        known.extend([PAD] * (end - len(known)))
        return known.tobytes()

    @property
    def parent(self) -> str:
        """The span that the request came with, as W3C's ``traceparent``; empty if there is none.

        vLLM passes it on with ``--otlp-traces-endpoint`` alone (vllm/v1/request.py).
        """
        headers = getattr(self.request, "trace_headers", None) or {}
        return str(headers.get("traceparent", ""))

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return self.request.num_prompt_tokens

    def whole(self, block: int) -> int:
        """The end of the prompt's last block, full or not; 0 once further tokens are known.

        Behind a prompt stands ``PAD``, so tokens generated since must not be there.
        """
        prompt = self.prompt
        return -(-prompt // block) * block if self.request.num_tokens == prompt else 0

    def loadable(self, local: int) -> int:
        """Tokens beyond the first *local*, which vLLM has, that can be loaded."""
        # Of a single token vLLM computes all that was loaded, and would have it loaded again.
        if self.found is None or self.request.num_tokens == 1:
            return 0
        # Within a step, a token must be left to compute.
        most = self.request.num_tokens - (0 if self.later else 1)
        return max(0, min(self.found.tokens, most) - local)

    def load(self, external: int, chunk: int) -> Load:
        """Return the load for the workers: *external* tokens beyond the local ones."""
        end = -(-(self.local + external) // chunk) * chunk
        if self.found is not None:
            end = min(end, self.found.tokens)  # a tail ends before its chunk would
        return Load(
            self.request.request_id,
            self.scope,
            self.tokens(end),
            self.local,
            end,
            tuple(self.blocks),
            self.later,
            self.kept,
            self.parent,
        )

    def completed(self, chunk: int, tail: int, *, generated: bool) -> int:
        """Tokens at the beginning that make whole chunks, whose KV is known after this step.

        With *tail* the last chunk of a prompt may end at any multiple of it. Tokens beyond the
        known ones were guessed (speculative decoding), and may be wrong.
        """
        prompt = self.prompt
        whole = min(self.known, self.request.num_tokens if generated else prompt) // chunk * chunk
        end = prompt // tail * tail if tail else 0
        return max(whole, end) if self.known >= end else whole

    def save(self, end: int, chunk: int, block_tokens: int, *, events: bool = False) -> Save:
        """Return the save for the workers, up to *end*; with *events* also vLLM's hashes."""
        # A full chunk takes the place of a tail from its beginning on.
        start, self.saved = self.saved // chunk * chunk, min(end, self.request.num_tokens)
        hashes: Sequence[bytes] = ()
        if (
            events
            and end <= self.request.num_tokens
            and len(self.request.block_hashes) >= end // block_tokens
        ):
            first = max(0, start // block_tokens - 1)
            hashes = tuple(self.request.block_hashes[first : end // block_tokens])
        return Save(
            self.request.request_id,
            self.scope,
            self.tokens(end),
            start,
            end,
            tuple(self.blocks[: end // block_tokens]),
            hashes,
            self.parent,
        )

    def spoiled(self, bad: set[int], block_tokens: int, chunk: int) -> bool:
        """Undo the progress over *bad* blocks. Return True if there are any."""
        for index, block in enumerate(self.blocks):
            if block in bad:
                at = index * block_tokens
                self.known = min(self.known, at)
                self.saved = min(self.saved, at // chunk * chunk)
                # The next answer might only lead here again.
                self.reads = False
                return True
        return False
