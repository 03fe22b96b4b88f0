"""How the connector works: the part of ``kv_connector_extra_config`` that is its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import SettingError


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The numbers of equal parts that a model's KV is cut into, each of which is stored alone.

    Engines that share a cache have the same here, with any numbers of ranks.
    """

    # Unknown keys are errors here, as everywhere.
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - pydantic's

    heads: int = 1
    """Parts by KV heads: a multiple of every ``tensor_parallel_size``, or, where that is more, all
    of the model's KV heads. Latent attention has one head."""

    layers: int = 1
    """Parts by layers: a multiple of every ``pipeline_parallel_size``."""

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= 1024:
            raise SettingError("shards", "heads must be 1 to 1024")
        if not 1 <= self.layers <= 1024:
            raise SettingError("shards", "layers must be 1 to 1024")


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    """How the connector works. The engine has a configuration of its own."""

    read: bool = True
    """Load cached KV. A request may refuse it: ``kv_transfer_params.hexkv.read``."""

    write: bool = True
    """Store computed KV. A request may refuse it: ``kv_transfer_params.hexkv.write``."""

    write_generated: bool = True
    """Store the KV of generated tokens, too: the next turn of a chat begins with them."""

    hands_over: bool | None = None
    """Store all of a prompt, its last block too, for an engine that decodes it. ``None``: where
    ``kv_role`` is ``kv_producer``, or the request has ``do_remote_decode``."""

    takes_over: bool | None = None
    """Load all of a prompt, its last block too, that another engine has computed. ``None``: where
    ``kv_role`` is ``kv_consumer``, or the request has ``do_remote_prefill``."""

    wait_seconds: float = 10.0
    """How long a request that is taken over waits for KV that another engine computes, at most."""

    hold_seconds: float = 60.0
    """How long KV that was computed for one decoder is kept from eviction, at most."""

    decode_node: str = ""
    """Name, in the directory, of the node that receives handed-over KV by push. A request may name
    another one: ``kv_transfer_params.hexkv.decode_node``."""

    prefill_node: str = ""
    """Name of the node to ask for KV that is taken over and is not here. Empty: some are asked for
    KV that they compute. A request may name another one, as prefillers do in their answers."""

    remove_after_load: bool = False
    """Delete chunks that were made for this decoder alone, once it has them."""

    loading: Literal["auto", "sync", "async", "layerwise"] = "auto"
    """Before the step that needs it; between steps, while others are served; or layer by layer
    during the step. ``auto``: between steps where a tier is remote, else before the step."""

    storing: Literal["step", "layerwise"] = "step"
    """At the end of the step; or, where ``shards`` cuts the layers of a rank, each part of them as
    soon as it is computed, beside the later ones."""

    async_lookup: bool | None = None
    """Let others be served while a tier is asked, instead of waiting for its answer. ``None``:
    where a tier is remote."""

    lookup_seconds: float = 2.0
    """How long a request waits for the answer to its lookup, at most."""

    loaders: int = 2
    """Threads that load asynchronously, on each rank."""

    collective: Literal["", "gloo"] = ""
    """How ranks that hold the same KV load together: the first one reads, and all get it, over
    torch.distributed. Empty: each reads for itself, as it should where they share a node."""

    collective_interface: str = "lo"
    """Network interface over which they do, the same name on every machine: ``eth0``, for
    instance, where they are on several."""

    collective_seconds: float = 2.0
    """How long a rank waits for the others, at most, beyond the deadline of a load; then it
    loads by itself until all are there again."""

    layout: Literal["auto", "opaque"] = "auto"
    """Chunks that other engines can use, where that is known to be possible; or whole blocks
    of this engine, always."""

    shards: ShardSettings | None = None
    """How the model's KV is cut, so that engines with other numbers of ranks share it. ``None``: as
    the ranks of this engine are."""

    reset_clears: tuple[str, ...] = ()
    """Tiers from which a reset of vLLM's own caches (``reset_external``, ``/pause``, ``/sleep``)
    deletes chunks of this model. Without any, it deletes nothing."""

    socket_dir: FilePath = ""
    """Where scheduler and workers meet; by default in the directory for temporary files."""

    def __post_init__(self) -> None:
        if not 0 < self.lookup_seconds <= 60:
            raise SettingError("lookup_seconds", "must be more than 0 and at most 60")
        if not 0 <= self.wait_seconds <= 600:
            raise SettingError("wait_seconds", "must be 0 to 600")
        if not 0 <= self.hold_seconds <= 3600:
            raise SettingError("hold_seconds", "must be 0 to 3600")
        for name in ("decode_node", "prefill_node"):
            if len(getattr(self, name).encode()) > 255:
                raise SettingError(name, "must have at most 255 bytes")
        if not 1 <= self.loaders <= 64:
            raise SettingError("loaders", "must be 1 to 64")
        if not 0 < self.collective_seconds <= 600:
            raise SettingError("collective_seconds", "must be more than 0 and at most 600")
        if not self.collective_interface:
            raise SettingError("collective_interface", "must name an interface")
        if self.collective and self.loading == "layerwise":
            raise SettingError("loading", "must not be layerwise where ranks load together")
        if self.collective and self.shards:
            raise SettingError("collective", "must be empty where KV is kept in shards")
        if self.storing == "layerwise" and (self.shards is None or self.shards.layers == 1):
            raise SettingError("storing", "must be step where shards.layers is 1")

    def resolved(self, *, remote: bool) -> ConnectorSettings:
        """These with nothing left open, where a tier is *remote*, or none is.

        A remote tier can hang, and a call that waits for it within a step holds up every request.
        """
        return replace(
            self,
            loading=("async" if remote else "sync") if self.loading == "auto" else self.loading,
            async_lookup=remote if self.async_lookup is None else self.async_lookup,
        )

    def between_steps(self, *, images: bool, handed: bool = False) -> bool:
        """True if the loads of a request happen between steps, with or without *images* in it.

        Only there can all tokens of a prompt be loaded that is *handed* from engine to engine.

        An image whose tokens are all there before a step stays behind in vLLM's scheduler (0.29
        and later). Were they to be computed after all, the worker could not, and vLLM would end.
        """
        return images or handed or self.loading == "async"
