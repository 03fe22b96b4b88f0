"""A forward pass over the paged KV of one request, in which some tokens keep their reused KV.

Made of the model's own layers, its own rotary embedding, and the attention backend's own metadata
builder and cache update: nothing here knows how a backend keeps KV in its pages. Tokens that go on
behind the check layer are runs; each run is shown to the backend as a request of its own, whose
queries are the run and whose context ends with it. All of them have the same block table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed import get_tp_group
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from blending_vllm.segments import KV, KeptSegments, Settings, cut


@dataclass(frozen=True)
class Span:
    """Tokens of one request whose KV the pass must leave in its blocks.

    ``tokens`` are the prompt's up to the span's end; those before ``start`` are computed already.
    ``blocks`` are the request's blocks, from its first token on.
    """

    tokens: list[int]
    start: int
    blocks: list[int]


@dataclass
class Counts:
    """Rows times layers of all passes so far."""

    whole: int = 0
    """What full computation of the spans takes."""
    computed: int = 0
    """What was computed in the spans."""
    alone: int = 0
    """What was computed besides, of segments that were seen first."""


class OwnPass:
    """Blends spans with the model of a worker's *runner*."""

    def __init__(self, runner: Any, settings: Settings) -> None:
        """Look the model over.

        Raises:
            ValueError: The model cannot be blended; the text has the reason.
        """
        decoder = getattr(runner.model, "model", None)
        self._layers = list(getattr(decoder, "layers", ()))
        if not self._layers or not all(_familiar(layer) for layer in self._layers):
            raise ValueError("its decoder layers have no self_attn with attn and rotary_emb")
        if len(runner.attn_groups) != 1 or len(runner.attn_groups[0]) != 1:
            raise ValueError("its layers keep KV in more than one way")
        if settings.check_layer >= len(self._layers):
            raise ValueError(f"it has no layer {settings.check_layer} to check")
        self._settings = settings
        self._embed = decoder.embed_input_ids
        self._attention = [layer.self_attn.attn for layer in self._layers]
        self._rotary = [layer.self_attn.rotary_emb for layer in self._layers]
        self._builder = runner.attn_groups[0][0].get_metadata_builder()
        self._config = runner.vllm_config
        self._block = self._config.cache_config.block_size
        self._most_rows = self._config.scheduler_config.max_num_batched_tokens
        self._device = runner.device
        self._kept = KeptSegments(settings.keep_bytes)
        self.counts = Counts()
        for rotary in self._rotary:
            self._check_rotation(rotary)

    def blend(self, span: Span) -> None:
        """Leave KV of the whole *span* in its blocks."""
        end = len(span.tokens)
        segments = [
            (a, b) for a, b in cut(span.tokens, self._settings.separator) if a >= span.start
        ]
        missing = {
            tuple(span.tokens[a:b]) for a, b in segments if self._kept.get(span.tokens[a:b]) is None
        }
        for tokens in sorted(missing):
            self._compute_alone(list(tokens), span.blocks[-(-span.start // self._block) :])
        found = [(a, b, kv) for a, b in segments if (kv := self._kept.get(span.tokens[a:b]))]
        self.counts.whole += (end - span.start) * len(self._layers)
        start = span.start
        if start == 0 and found and found[0][0] == 0:
            # Computed alone at position 0 is what it is here: exact.
            _, start, kv = found.pop(0)
            for index, (keys, values) in enumerate(kv):
                self._write(index, keys, values, torch.arange(start), span.blocks)
        while start < end:
            piece = start, min(end, start + self._most_rows)
            self._blend_piece(span, piece, found)
            start = piece[1]

    def _compute_alone(self, tokens: list[int], blocks: list[int]) -> None:
        """Compute *tokens* from position 0 on in *blocks*, which the span will overwrite."""
        if len(tokens) > len(blocks) * self._block:
            return  # The span does not begin with a block; the segment counts as a hole.
        parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in self._layers]
        for low in range(0, len(tokens), self._most_rows):
            rows = torch.arange(low, min(len(tokens), low + self._most_rows))
            hidden, residual = self._embed(self._ids(tokens)[rows]), None
            with self._context(rows, blocks):
                for index, layer in enumerate(self._layers):
                    with self._fresh(index) as seen:
                        hidden, residual = layer(self._positions(rows), hidden, residual)
                    parts[index] += seen
            self.counts.alone += len(rows) * len(self._layers)
        kv = [(torch.cat([k for k, _ in p]), torch.cat([v for _, v in p])) for p in parts]
        self._kept.put(tokens, kv)

    def _blend_piece(
        self, span: Span, piece: tuple[int, int], found: Sequence[tuple[int, int, KV]]
    ) -> None:
        check = self._settings.check_layer
        low, high = piece
        rows = torch.arange(low, high)
        reused = torch.zeros(high - low, dtype=torch.bool)
        for a, b, _ in found:
            reused[max(a - low, 0) : max(b - low, 0)] = True
        hidden, residual = self._embed(self._ids(span.tokens)[rows]), None
        with self._context(rows, span.blocks):
            for index, layer in enumerate(self._layers[: check + 1]):
                with self._fresh(index, only=check) as seen:
                    hidden, residual = layer(self._positions(rows), hidden, residual)
        self.counts.computed += len(rows) * (check + 1)
        old = self._reused(check, piece, found)
        chosen = self._choose(seen[0][0], None if old is None else old[0], reused)
        hidden, residual = hidden[chosen], residual[chosen]
        going = rows[chosen]
        with self._context(going, span.blocks):
            for index in range(check + 1, len(self._layers)):
                if old := self._reused(index, piece, found):
                    self._write(index, *old, rows[reused], span.blocks)
                if len(going):
                    layer = self._layers[index]
                    hidden, residual = layer(self._positions(going), hidden, residual)
        self.counts.computed += len(going) * (len(self._layers) - check - 1)

    def _choose(
        self, fresh: torch.Tensor, old: torch.Tensor | None, reused: torch.Tensor
    ) -> torch.Tensor:
        """Rows that go on: those without reused KV, and those whose keys are farthest off."""
        going = ~reused
        if old is not None:
            far = (fresh[reused].float() - old.float()).square().sum((1, 2))
            # Ranks have heads of their own, and must choose alike.
            far = get_tp_group().all_reduce(far)
            wanted = round(self._settings.ratio * len(far))
            going[reused.nonzero().ravel()[far.topk(wanted).indices.cpu()]] = True
        return going.nonzero().ravel()

    def _reused(
        self, index: int, piece: tuple[int, int], found: Sequence[tuple[int, int, KV]]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Reused keys, where they stand in the prompt, and values of layer *index* in *piece*."""
        low, high = piece
        parts = []
        for a, b, kv in found:
            first, last = max(a, low), min(b, high)
            if first < last:
                keys, values = (part[first - a : last - a] for part in kv[index])
                parts.append((self._rotated(self._rotary[index], keys, a), values))
        if not parts:
            return None
        return torch.cat([k for k, _ in parts]), torch.cat([v for _, v in parts])

    def _rotated(self, rotary: Any, keys: torch.Tensor, offset: int) -> torch.Tensor:
        """*Keys* as they would be *offset* positions later, by the model's own embedding."""
        places = torch.full((len(keys),), offset, device=keys.device)
        turned, _ = rotary(places, keys.reshape(len(keys), -1).clone(), None)
        return turned.view_as(keys)

    def _check_rotation(self, rotary: Any) -> None:
        """Rotating by 5, then by 7, must be rotating by 12.

        Raises:
            ValueError: It is not. Frequencies depend on the length, or keys are scaled.
        """
        attention = self._attention[0]
        probe = torch.randn(1, 1, attention.head_size, device=self._device).to(
            self._config.model_config.dtype
        )
        twice = self._rotated(rotary, self._rotated(rotary, probe, 5), 7)
        once = self._rotated(rotary, probe, 12)
        if (twice.float() - once.float()).norm() > 0.02 * once.float().norm():
            raise ValueError("its rotary embedding does not add up, so keys cannot be moved")

    def _write(
        self,
        index: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: torch.Tensor,
        blocks: list[int],
    ) -> None:
        attention = self._attention[index]
        attention.impl.do_kv_cache_update(
            attention, keys, values, attention.kv_cache, self._slots(rows, blocks)
        )

    @contextmanager
    def _fresh(
        self, index: int, only: int | None = None
    ) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Keys and values that layer *index* computes, if it is the *only* one or there is none."""
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        attention = self._attention[index]

        def keep(_: object, given: tuple[torch.Tensor, ...]) -> None:
            shape = -1, attention.num_kv_heads, attention.head_size
            seen.append((given[1].reshape(shape).clone(), given[2].reshape(shape).clone()))

        if only is not None and index != only:
            yield seen
            return
        hook = attention.register_forward_pre_hook(keep)
        try:
            yield seen
        finally:
            hook.remove()

    @contextmanager
    def _context(self, rows: torch.Tensor, blocks: list[int]) -> Iterator[None]:
        """vLLM's forward context for *rows*, ascending positions, of a sequence in *blocks*."""
        if not len(rows):
            yield
            return
        breaks = (rows.diff() != 1).nonzero().ravel() + 1
        starts = torch.cat([torch.zeros(1, dtype=torch.long), breaks])
        ends = torch.cat([breaks, torch.tensor([len(rows)])])
        query_start = torch.cat([starts, ends[-1:]]).int()
        contexts = (rows[ends - 1] + 1).int()
        slots = self._slots(rows, blocks)
        table = torch.tensor(blocks, dtype=torch.int32).expand(len(starts), -1).contiguous()
        metadata = self._builder.build(
            0,
            CommonAttentionMetadata(
                query_start_loc=query_start.to(self._device),
                query_start_loc_cpu=query_start,
                seq_lens=contexts.to(self._device),
                num_reqs=len(starts),
                num_actual_tokens=len(rows),
                max_query_len=int((ends - starts).max()),
                max_seq_len=int(contexts.max()),
                block_table_tensor=table.to(self._device),
                slot_mapping=slots,
                positions=self._positions(rows),
            ),
        )
        names = [attention.layer_name for attention in self._attention]
        with set_forward_context(
            dict.fromkeys(names, metadata),
            self._config,
            num_tokens=len(rows),
            slot_mapping=dict.fromkeys(names, slots),
        ):
            yield

    def _slots(self, rows: torch.Tensor, blocks: list[int]) -> torch.Tensor:
        """Where the KV of *rows* lies, counted in tokens over all blocks."""
        block = torch.tensor(blocks)[rows // self._block]
        return (block * self._block + rows % self._block).to(self._device)

    def _positions(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self._device)

    def _ids(self, tokens: list[int]) -> torch.Tensor:
        return torch.tensor(tokens, device=self._device)


def _familiar(layer: Any) -> bool:
    attention = getattr(layer, "self_attn", None)
    return hasattr(attention, "attn") and hasattr(attention, "rotary_emb")
