"""``hexkv bench``: the rates of this machine's tiers, as they are configured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer

from hexkv.plugins.cli.output import (
    Json,
    human_size,
    named,
    new_app,
    print_json,
    print_table,
    refuse,
    run_app,
    size_option,
)
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.plugins.configuration.sizes import parse_size
from hexkv.ports import (
    DType,
    Finished,
    HexKVError,
    KVLayout,
    Namespace,
    PrefixCache,
    Span,
)

TOKENS = 256
"""Tokens of a chunk."""


class FlatKV:
    """A window on one piece of memory, with each chunk's bytes in the order of the chunk."""

    def __init__(self, layout: KVLayout, tokens: int, kv: bytearray) -> None:
        """Use *kv* for *tokens* tokens."""
        self.layout = layout
        self.tokens = tokens
        self._kv = memoryview(kv)

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Finished:
        del layers
        for start, end, data in spans:
            data[:] = self._part(start, end)
        return Finished()

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Finished:
        del layers
        for start, end, data in spans:
            self._part(start, end)[:] = data
        return Finished()

    def _part(self, start: int, end: int) -> memoryview:
        size = self.layout.token_bytes
        return self._kv[start * size : end * size]


def measure(settings: EngineSettings, index: int, size: int, rounds: int) -> dict[str, Any]:
    """Store and load *size* bytes on one tier of *settings*, which are deleted again."""
    tier = settings.tiers[index]
    layout = KVLayout.attention(DType.UINT8, layers=16, heads=8, key_width=64)
    chunks = max(1, size // layout.chunk_bytes(TOKENS))
    tokens, size = chunks * TOKENS, chunks * layout.chunk_bytes(TOKENS)
    room = settings.pool.model_copy(update={"bytes": 2 * size + (64 << 20)})
    in_memory = tier.store in ("memory", "heap")
    parts = {
        "pool": room,
        "tiers": [tier.model_copy(update={"budget": None}) if in_memory else tier],
        "serdes": settings.serdes,
        "checksum": settings.checksum,
    }
    alone = EngineSettings().model_copy(update=parts)
    stored, loaded = [], []
    space = Namespace(f"hexkv bench {uuid4()}", layout)
    source, target = bytearray(os.urandom(size)), bytearray(size)
    with build(alone, space) as cache:
        for name in range(rounds):
            prompt = [name] * tokens
            window = FlatKV(layout, tokens, source)
            stored.append(_seconds(partial(_store, cache, prompt, window)))
            into = FlatKV(layout, tokens, target)
            loaded.append(_seconds(partial(_load, cache, prompt, into)))
            cache.clear(prompt)
    return {
        "tier": tier.name,
        "bytes": size,
        "store": size / min(stored),
        "load": size / min(loaded),
        "load_ms": 1000 * min(loaded) / chunks,
    }


def _store(cache: PrefixCache, prompt: Sequence[int], window: FlatKV) -> None:
    report = cache.store(prompt, window)
    if report.stored_tokens < len(prompt):
        why = ", ".join(report.drops) or "not written in time"
        raise HexKVError(f"stored {report.stored_tokens} of {len(prompt)} tokens: {why}")


def _load(cache: PrefixCache, prompt: Sequence[int], window: FlatKV) -> None:
    found = cache.retrieve(prompt, window)
    if found.hit_tokens < len(prompt):
        why = ", ".join(found.misses)
        raise HexKVError(f"loaded {found.hit_tokens} of {len(prompt)} tokens: {why}")


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def bench(
    config: Annotated[
        Path | None, typer.Option(help="The configuration; by default HEXKV_CONFIG's.")
    ] = None,
    size: Annotated[str, size_option("What each tier stores and loads.")] = "256MiB",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="The best one counts.")] = 3,
    as_json: Json = False,
) -> None:
    """Measure the rates of each configured tier, alone: random KV, deleted afterwards.

    Reads come right after the writes, from the system's cache where a store uses it. The time to
    the first token of a model of yours: hexkv demo --model NAME.
    """
    try:
        amount = int(str(parse_size(size)))
    except ValueError as error:
        refuse("--size", str(error))
    with named("--config", config):
        settings = load(config).settings
    if settings.node:
        refuse("--config", "the tiers are a node's: give its configuration")
    rows: list[dict[str, Any]] = []
    for index, tier in enumerate(settings.tiers):
        try:
            rows.append(measure(settings, index, amount, rounds))
        except HexKVError as error:
            rows.append({"tier": tier.name, "error": str(error)})
    if as_json:
        print_json(rows)
        return
    print_table(
        ["tier", "stores ", "loads ", "a chunk ", ""],
        [
            (row["tier"], "", "", "", row["error"])
            if "error" in row
            else (
                row["tier"],
                f"{row['store'] / 1e9:.2f} GB/s",
                f"{row['load'] / 1e9:.2f} GB/s",
                f"{row['load_ms']:.2f} ms",
                f"of {human_size(row['bytes'])}",
            )
            for row in rows
        ],
    )


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Measure the rates of the configured tiers.")
    app.command()(bench)
    return run_app(app, "hexkv bench", arguments)
