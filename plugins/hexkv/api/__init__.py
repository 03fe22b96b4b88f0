"""The public API: everything that a program with its own KV cache imports.

``docs/embedding.md`` goes through it from nothing to a hit. Importing this module starts no thread,
opens no file, and loads neither pydantic nor torch.

* opening: :func:`open_cache`, which returns a :class:`Cache`, that is a :class:`PrefixCache` with
  its administration, and for layerwise requests :class:`LayeredRead` and :class:`LayeredWrite`
* in modules of their own: :mod:`hexkv.api.aio` for asyncio, :mod:`hexkv.api.arrays` for windows on
  NumPy arrays
* the shape and the owner of KV: :class:`KVLayout` (of :class:`LayerGroup` and :class:`Plane`),
  :class:`DType`, :class:`Namespace`, :class:`ParallelSlice`, :data:`Tokens`, :data:`ChunkKey`
* windows on KV memory: :class:`DeviceKV`, :class:`Span`, :class:`Transfer`, :class:`Finished`,
  :class:`Deadline`
* results: :class:`Lookup`, :class:`Retrieved`, :class:`StoreReport`, :class:`Reason`,
  :class:`Health`, :class:`TierHealth`
* observing it: :class:`Telemetry`, :class:`EventSink`, :class:`CacheEvent`; and the trace of a
  call: :func:`traced`
* errors, all of them :class:`HexKVError`: :mod:`hexkv.ports.errors` has the tree
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from hexkv.ports import (
    AdapterUnavailable,
    Administration,
    CacheEvent,
    ChunkKey,
    Clock,
    ConfigError,
    Deadline,
    DeviceKV,
    DType,
    EngineBusy,
    EngineClosed,
    EventSink,
    Finished,
    Health,
    HexKVError,
    InvalidRequest,
    InvalidTokens,
    KVLayout,
    LayeredRead,
    LayeredWrite,
    LayerGroup,
    LayoutMismatch,
    Lookup,
    Namespace,
    ParallelSlice,
    Plane,
    PoolExhausted,
    PrefixCache,
    Reason,
    Retrieved,
    Span,
    StoreError,
    StoreReport,
    Telemetry,
    TierHealth,
    Tokens,
    TraceStep,
    Transfer,
    traced,
)

if TYPE_CHECKING:
    from hexkv.core.admin.explain import Explanation

__all__ = [
    "AdapterUnavailable",
    "Cache",
    "CacheEvent",
    "ChunkKey",
    "ConfigError",
    "DType",
    "Deadline",
    "DeviceKV",
    "EngineBusy",
    "EngineClosed",
    "EventSink",
    "Finished",
    "Health",
    "HexKVError",
    "InvalidRequest",
    "InvalidTokens",
    "KVLayout",
    "LayerGroup",
    "LayeredRead",
    "LayeredWrite",
    "LayoutMismatch",
    "Lookup",
    "Namespace",
    "ParallelSlice",
    "Plane",
    "PoolExhausted",
    "PrefixCache",
    "Reason",
    "Retrieved",
    "Span",
    "StoreError",
    "StoreReport",
    "Telemetry",
    "TierHealth",
    "Tokens",
    "Transfer",
    "open_cache",
    "traced",
]


class Cache(PrefixCache, Protocol):
    """An opened cache: the calls of a program, with those of an operator."""

    @property
    def admin(self) -> Administration:
        """The operators' calls. Raises InvalidRequest over a node, which has its own."""
        ...

    def steps(self) -> Sequence[TraceStep]:
        """Return the last steps of all calls; see :meth:`Administration.steps`."""
        ...

    def explain(self, tokens: Tokens, *, namespace: Namespace | None = None) -> Explanation:
        """Return where the hits of a prompt end, and why, tier by tier. Raises as :attr:`admin`."""
        ...


Config: TypeAlias = str | os.PathLike[str] | Mapping[str, object]


def open_cache(
    config: Config | None = None,
    *,
    namespace: Namespace | None = None,
    model: str = "",
    layout: KVLayout | None = None,
    telemetry: Telemetry | None = None,
    events: Sequence[EventSink] = (),
    clock: Clock | None = None,
) -> Cache:
    """Open the cache that a configuration describes. Close it, or use it as a context manager.

    The layers of a configuration are, weakest first: the defaults (one tier, in memory), a file,
    the environment's ``HEXKV_*``, and a mapping given here. If opening fails, everything opened so
    far is closed again.

    Args:
        config: the path of a YAML file, or a nested mapping of the same keys. With a mapping or
            ``None``, the file is the one that ``HEXKV_CONFIG`` names, if any.
        namespace: of the model whose KV is cached: everything besides the tokens that makes its KV
            differ.
        model: in place of a namespace, where nothing differs but the model's name and *layout*.
        layout: dtype and shape of the KV of one token.
        telemetry: receives every count and duration; by default they are added up in memory.
        events: receive the content of each tier.
        clock: in place of the machine's, for tests.

    Raises:
        ConfigError: the configuration describes nothing that can be built, or does not name the
            model of the KV.
        AdapterUnavailable: a module that an adapter needs is not installed.
        PoolExhausted: the machine does not have the memory of the pool.
        StoreError: a store cannot be opened.
    """
    # These read and check settings by pydantic, which takes longer than all the rest.
    from hexkv.plugins.composition.compose import build
    from hexkv.plugins.configuration.config import load

    if isinstance(config, Mapping):
        loaded = load(overrides=config)
    elif config is None or isinstance(config, str | os.PathLike):
        loaded = load(config)
    else:
        raise ConfigError(
            f"config is a {type(config).__name__}: give the path of a YAML file or a mapping"
        )
    if namespace is None:
        if layout is None:
            raise ConfigError("the cache has no layout: give namespace=, or model= and layout=")
        namespace = Namespace(model, layout)
    elif model or layout is not None:
        raise ConfigError("the cache has two identities: give namespace=, or model= and layout=")
    if not (namespace.model or loaded.settings.model.name):
        raise ConfigError("the cache has no model: give model=, or set model.name")
    return build(loaded, namespace, telemetry=telemetry, events=events, clock=clock)
