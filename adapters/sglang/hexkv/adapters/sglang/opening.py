"""Builds an engine from SGLang's configuration, and logs facts about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from typing import NamedTuple
from weakref import ref

from hexkv.adapters.sglang import hooks
from hexkv.adapters.sglang.configuration import RawConfig
from hexkv.adapters.sglang.identity import lora
from hexkv.adapters.sglang.identity.identity import Rank, namespace_of, server_arguments
from hexkv.adapters.sglang.identity.weights import Weights
from hexkv.adapters.sglang.metrics import publish, show_off, telemetry
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.schema import Calls
from hexkv.plugins.support.causes import causing
from hexkv.ports import HexKVError, KVLayout, PrefixCache

log = logging.getLogger("hexkv.sglang")


class Opened(NamedTuple):
    """An engine, its deadlines and its weights."""

    engine: PrefixCache
    deadlines: Calls
    """The deadlines of its calls."""

    weights: Weights
    """The weights that its namespace is for."""


@causing()
def open_engine(
    raw: RawConfig,
    layout: KVLayout,
    rank: Rank,
    *,
    page: int,
    name: str | None,
    inside: Mapping[str, str] | None = None,
    advice: str = "restart the server",
) -> Opened:
    """Build the engine of one rank, for pages of *page* tokens.

    Args:
        raw: the settings as given.
        layout: of the KV of one token.
        rank: of the scheduler.
        page: tokens in a page.
        name: of the model, where there is no server.
        inside: other facts that decide about the bytes in a page that only SGLang understands.
        advice: the way out once the weights were replaced.

    Raises:
        ConfigError, AdapterUnavailable, StoreError, PoolExhausted: it cannot be built.
    """
    hooks.install()
    arguments = server_arguments()
    configured = raw.with_pages(page, _ranks_here(rank, arguments))
    vouched = configured.engine.settings.model.weights
    weights = Weights(vouched=vouched, server=arguments is not None)
    namespace = namespace_of(
        layout,
        rank,
        configured,
        page=page,
        arguments=arguments,
        name=name,
        inside=inside,
    )
    lora.name_by_content()
    number = rank.whole.rank
    counted = telemetry(arguments, number)
    engine = build(configured.engine, namespace, telemetry=counted, rank=number)
    settings = configured.engine.settings
    if not settings.node:  # which shows its tiers itself
        publish(engine)
    if rank.replicated and rank.tensors > 1 and not settings.shared:
        log.warning(
            "latent KV is stored by the first rank alone, and no tier is one that the other %d"
            " can see: nothing will be found",
            rank.tensors - 1,
        )
    tiers = ", ".join(
        f"{tier.name} of {_size(tier.budget_bytes)}" for tier in engine.health().tiers
    )
    log.info(
        "hexkv %s under SGLang %s, rank %d of %d: %s; pool of %s (%s); a page of %d tokens is %s%s",
        metadata.version("hexkv"),
        metadata.version("sglang"),
        rank.whole.rank,
        rank.whole.world,
        tiers,
        _size(engine.health().pool_bytes if settings.node else settings.pool.bytes),
        "the node's" if settings.node else configured.engine.origin(("pool", "bytes")),
        page,
        _size(layout.chunk_bytes(page)),
        ", as SGLang packs it" if inside else "",
    )
    log.info("hexkv namespace (%s): %s", configured.chosen.namespace, engine.namespace)
    if layout.chunk_bytes(page) < _SMALL:
        log.warning(
            "a page of %s is small for what each one costs: a larger --page-size is faster",
            _size(layout.chunk_bytes(page)),
        )
    weights.follow(partial(_switch_off, ref(engine), advice))
    return Opened(engine, settings.deadlines, weights)


def _ranks_here(rank: Rank, arguments: object | None) -> int:
    """Return how many ranks share the memory of this machine."""

    def number(name: str) -> int:
        return int(getattr(arguments, name, 1) or 1)

    return max(1, rank.whole.world * number("dp_size") // number("nnodes"))


def _switch_off(opened: ref[PrefixCache], advice: str, why: str) -> None:
    """Report in log, health and metrics that the cache is off. No error reaches the update."""
    engine = opened()
    try:
        if engine is not None:
            engine.freeze(why=why)
            show_off(engine, why)
            log.error("%s: from now on nothing is read or stored; %s", why, advice)
    except HexKVError as error:
        log.debug("the cache was closed before: %s", error)


_SMALL = 64 << 10
"""Bytes of a page below which the cost of each chunk (a header of 4 KiB, a request) shows."""


def _size(size: int | None) -> str:
    if size is None:
        return "any size"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 10 * 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} TiB"
