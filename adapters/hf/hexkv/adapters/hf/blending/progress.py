"""One pass of a model over prompts that are blended: which tokens are computed in which layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from hexkv.adapters.hf.blending.plan import BlendCounts, BlendPlan, Ready, Run
from hexkv.adapters.hf.blending.selectors import Evidence
from hexkv.ports import InvalidRequest


class Progress:
    """The state of a pass over one prompt, in the prompt's own positions.

    Rows are counted among the tokens that a layer computes, positions in the prompt.
    """

    def __init__(
        self,
        tokens: int,
        *,
        prefix: int,
        reused: Sequence[Run],
        plan: BlendPlan,
        keep: int,
        ready: Ready | None,
    ) -> None:
        """Begin with every token behind the exact prefix.

        Raises:
            InvalidRequest: the runs are not in order or overlap, nothing is to be kept, or the
                plan means nothing.
        """
        if not 1 <= keep <= tokens or not 0 <= prefix <= tokens:
            raise InvalidRequest(
                f"a prompt of {tokens} tokens has no prefix of {prefix} and {keep} last tokens"
            )
        edges = [edge for run in reused for edge in run[:2]]
        if any(before > after for before, after in pairwise([0, *edges, tokens])):
            raise InvalidRequest(f"runs overlap, or are not in order, or end behind {tokens}")
        self.tokens = tokens
        self.prefix = min(prefix, tokens - keep)
        self.selector = plan.chosen_by()
        self.check_layer = plan.check_layer
        self.positions = torch.arange(self.prefix, tokens)
        """``[rows]``: of the tokens that are computed in the layer under way."""

        self.rows: torch.Tensor | None = None
        """``[kept]``: which rows of the first layer go on; ``None`` while all do."""

        self.attention: torch.Tensor | None = None
        """``[tokens]``, once it is known."""

        self.awaits_attention = False
        self.select_seconds = 0.0
        self._keep = keep
        self._ready = ready
        self._ratio = plan.ratio
        self._own = torch.full((tokens,), -1)
        for run in reused:
            self._own[run.start : run.end] = torch.arange(run.end - run.start) + run.position
        self._own[: self.prefix] = -1
        self._own[tokens - keep :] = -1
        self._candidates = (self._own >= 0).nonzero().ravel() - self.prefix
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._computed: list[int] = []

    @property
    def first_rows(self) -> int:
        """The number of rows that the first layer computes."""
        return self.tokens - self.prefix

    @property
    def question(self) -> torch.Tensor:
        """``[rows]``: those that follow the last reused token."""
        last = int(self._candidates[-1]) if len(self._candidates) else -1
        return torch.arange(last + 1, self.first_rows)

    def arrive(self, layer: int) -> None:
        """Wait until the KV of *layer* is there."""
        if self._ready is not None:
            self._ready(layer)

    def compute(
        self, layer: int, fresh: Sequence[torch.Tensor], room: Sequence[torch.Tensor]
    ) -> None:
        """Take the KV that *layer* computed for its rows into *room*, of the whole prompt."""
        at = self.positions.to(fresh[0].device)
        if layer == self.check_layer and self.selector.needs_layer:
            rows = self._candidates.to(at.device)
            self._pairs = [
                (new[:, :, rows], old[:, :, at[rows]]) for new, old in zip(fresh, room, strict=True)
            ]
            self.awaits_attention = self.selector.needs_attention
        for new, old in zip(fresh, room, strict=True):
            old[:, :, at] = new
        self._computed.append(len(at))

    def choose(self) -> None:
        """Decide which rows go on. At once, before the layer behind the check layer."""
        if self.rows is not None:
            return
        began = time.perf_counter()
        candidates = self._candidates
        wanted = round(self._ratio * len(candidates))
        chosen = torch.ones(self.first_rows, dtype=torch.bool)
        if wanted < len(candidates):
            chosen[candidates] = False
            if wanted:
                chosen[candidates[self._scores().cpu().topk(wanted).indices]] = True
        self.rows = chosen.nonzero().ravel()
        self.positions = self.positions[self.rows]
        self._pairs = []
        self.select_seconds += time.perf_counter() - began

    def counts(self) -> BlendCounts:
        """Return the tokens by the origin of their KV."""
        known = len(self._candidates)
        dropped = 0 if self.rows is None else self.first_rows - len(self.rows)
        return BlendCounts(
            prefix=self.prefix,
            reused=dropped,
            recomputed=known - dropped,
            computed=self.first_rows - known,
            rows=tuple(self._computed),
        )

    def _scores(self) -> torch.Tensor:
        candidates = self._candidates
        positions = candidates + self.prefix
        fresh = reused = attention = None
        if self._pairs:
            (fresh_keys, reused_keys), (fresh_values, reused_values) = self._pairs
            fresh, reused = (fresh_keys, fresh_values), (reused_keys, reused_values)
        if self.attention is not None:
            attention = self.attention.cpu()[positions]
        scores = self.selector.scores(
            Evidence(positions, self._own[positions], fresh, reused, attention)
        )
        if scores.shape != positions.shape:
            raise InvalidRequest(
                f"{self.selector} gives scores of shape {tuple(scores.shape)}, not one for each"
                f" of {len(positions)} candidates"
            )
        return scores


class Pass:
    """One pass over the prompts of a batch, each of which chooses its own tokens.

    The prompts end together, in the last slot of the cache; before a shorter one are empty
    slots. Each layer computes as many rows of each prompt as of the one that needs most.
    A prompt's own rows are always the last ones: the rows before them are computed and dropped.
    """

    def __init__(self, prompts: Sequence[Progress]) -> None:
        """Begin a pass over *prompts*, which have one check layer."""
        self.prompts = prompts
        self.tokens = max(prompt.tokens for prompt in prompts)
        """Slots of the cache."""

        self.first_rows = max(prompt.first_rows for prompt in prompts)
        """The number of rows that the first layer computes of each prompt."""

        self.rows: torch.Tensor | None = None
        """``[prompts, kept]``: which rows of the first layer go on; ``None`` while all do."""

    @property
    def check_layer(self) -> int:
        """The check layer of all prompts."""
        return self.prompts[0].check_layer

    @property
    def whole(self) -> bool:
        """True while every prompt computes all that it began with."""
        return all(len(prompt.positions) == prompt.first_rows for prompt in self.prompts)

    @property
    def known(self) -> int:
        """Slots whose KV is there before the pass."""
        return self.tokens - self.first_rows

    @property
    def before(self) -> Sequence[int]:
        """For each prompt the slots before its first token."""
        return [self.tokens - prompt.tokens for prompt in self.prompts]

    @property
    def awaits_attention(self) -> bool:
        """True once a layer is under way whose attention a selector needs."""
        return any(prompt.awaits_attention for prompt in self.prompts)

    def questions(self) -> list[torch.Tensor]:
        """For each prompt the rows that follow its last reused token."""
        return [prompt.question + self.first_rows - prompt.first_rows for prompt in self.prompts]

    def see(self, attention: Sequence[torch.Tensor]) -> None:
        """Take in the attention of each prompt's question, ``[slots]``."""
        for prompt, before, seen in zip(self.prompts, self.before, attention, strict=True):
            prompt.attention = seen[before : self.tokens]
            prompt.awaits_attention = False

    def compute(
        self, layer: int, fresh: Sequence[torch.Tensor], room: Sequence[torch.Tensor]
    ) -> None:
        """Wait for the reused KV of *layer*, and take in the fresh KV of its rows.

        Args:
            layer: of the cache.
            fresh: ``[prompts, heads, rows, width]`` each.
            room: ``[prompts, heads, slots, width]`` each.

        Raises:
            InvalidRequest: these are not the rows that go on.
        """
        rows = self.first_rows if self.rows is None else self.rows.shape[1]
        if fresh[0].shape[-2] != rows:
            raise InvalidRequest(
                f"layer {layer} computes {fresh[0].shape[-2]} tokens, not the {rows} chosen ones"
            )
        for index, (prompt, before) in enumerate(zip(self.prompts, self.before, strict=True)):
            prompt.arrive(layer)
            row = slice(index, index + 1)
            prompt.compute(
                layer,
                [plane[row, :, rows - len(prompt.positions) :] for plane in fresh],
                [plane[row, :, before : self.tokens] for plane in room],
            )

    def choose(self) -> None:
        """Decide which rows go on. At once, before the layer behind the check layer."""
        if self.rows is not None:
            return
        chosen = []
        for prompt in self.prompts:
            prompt.choose()
            if prompt.rows is not None:
                chosen.append(prompt.rows + self.first_rows - prompt.first_rows)
        most = max(map(len, chosen))
        if most == self.first_rows and not self.whole:
            most += 1  # by their number the hooks distinguish chosen rows from all of them
        # A row in front of a prompt's own is its first one once more.
        self.rows = torch.stack(
            [torch.cat([rows[:1].expand(most - len(rows)), rows]) for rows in chosen]
        )

    def causal(self) -> torch.Tensor:
        """``[prompts, 1, kept, slots]`` bool: the mask that transformers leaves to the kernel."""
        slots = torch.arange(self.tokens)
        last = torch.arange(self.first_rows)[:, None] + self.known
        rows = last if self.rows is None else last[self.rows]
        before = torch.tensor(self.before)[:, None, None]
        return ((slots <= rows) & (slots >= before))[:, None]
