"""Translates vLLM's own objects into this adapter's terms; they differ between releases."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.adapters.vllm.messages import Kept
from hexkv.adapters.vllm.metrics.events import BlockEvent
from hexkv.adapters.vllm.scheduler.requests import Allowed, Scheduled
from hexkv.plugins.configuration.schema import TierSettings

log = logging.getLogger("vllm.hexkv")

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig
    from vllm.v1.core.sched.output import SchedulerOutput


class RequestParams:
    """Reads requests' ``kv_transfer_params``, for instance ``{"hexkv": {"read": false}}``.

    Args:
        transfer: vLLM's configuration, of which the role counts.
        settings: of the connector.
        node: the name of the node that keeps KV for another engine.
    """

    def __init__(
        self, transfer: KVTransferConfig, settings: ConnectorSettings, node: str = ""
    ) -> None:
        self._node = node
        consumes, produces = transfer.is_kv_consumer, transfer.is_kv_producer
        self._reads = settings.read and consumes
        self._writes = settings.write and produces
        self._hands_over = _unless(settings.hands_over, produces and not consumes)
        self._takes_over = _unless(settings.takes_over, consumes and not produces)
        self._decode_node, self._prefill_node = settings.decode_node, settings.prefill_node
        self._by_request = settings.hands_over is None, settings.takes_over is None
        self._logged: set[str] = set()

    def allowed(self, params: object) -> Allowed:
        """Return the permissions of a request with *params*.

        Invalid parameters were meant to switch something off: nothing is done for that request,
        and each kind of error is logged once.
        """
        given: Mapping[Any, Any] = params if isinstance(params, Mapping) else {}
        wanted = given.get("hexkv")
        if wanted is None:
            wanted = {}
        if wrong := _nonsense(wanted):
            if wrong not in self._logged:
                self._logged.add(wrong)
                log.warning(
                    "kv_transfer_params.hexkv of a request %s: nothing is loaded or stored for it;"
                    " this is logged once",
                    wrong,
                )
            return Allowed()
        # Routers set these two, for connectors of any kind.
        gives, takes = given.get("do_remote_decode") is True, given.get("do_remote_prefill") is True
        kept = Kept()
        # A pin may also be on chunks pushed here; ending one of another node does nothing.
        if "hold" in wanted and (wanted.get("node") == self._node or "prefill_node" in wanted):
            kept = Kept(wanted["hold"], wanted.get("fresh", -1))
        return Allowed(
            self._reads and wanted.get("read", True),
            self._writes and wanted.get("write", True),
            self._hands_over or (self._by_request[0] and gives),
            self._takes_over or (self._by_request[1] and takes),
            gives,
            kept,
            wanted.get("decode_node", self._decode_node),
            wanted.get("prefill_node", self._prefill_node),
        )

    def answer(
        self, engine: object, request: str, tokens: int, kept: Kept, name: str = ""
    ) -> dict[str, Any]:
        """The parameters that a router passes on to the engine that decodes, in vLLM's terms."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": str(engine),
            "remote_request_id": request,
            "remote_block_ids": [],  # nothing of vLLM's is kept
            "remote_host": None,
            "remote_port": None,
            "remote_num_tokens": tokens,
            "hexkv": {
                "node": self._node,
                **kept._asdict(),
                # The name of this node at other nodes.
                **({"prefill_node": name} if name else {}),
            },
        }


def _unless(given: bool | None, otherwise: bool) -> bool:
    return otherwise if given is None else given


_KINDS: Mapping[str, type] = {
    "read": bool,
    "write": bool,
    "node": str,
    "hold": str,
    "fresh": int,
    "decode_node": str,
    "prefill_node": str,
}
"""The keys that a request may have under ``hexkv``. A router sets ``decode_node``; those after the
first two come from the engine that computed the prompt."""

_HOLD = re.compile("[0-9a-f]{32}|")


def _nonsense(wanted: Any) -> str:
    """The error, as one of a few texts that repeat nothing of a client's; empty if none."""
    if not isinstance(wanted, Mapping):
        return f"is a {type(wanted).__name__}, not a mapping"
    if wanted.keys() - _KINDS.keys():
        return "has keys beside read and write"
    for name, value in wanted.items():
        if type(value) is not _KINDS[name]:
            return f"has a {type(value).__name__} as {name}, not a {_KINDS[name].__name__}"
    if not _HOLD.fullmatch(wanted.get("hold", "")):
        return "has a hold that is none of hexkv's"
    if any(len(wanted.get(name, "").encode()) > 255 for name in ("decode_node", "prefill_node")):
        return "has a name of a node that no node has"
    return ""


def node_name(path: str) -> str:
    """The name of the node at *path* for other machines; empty if there is none."""
    digest = sha256(path.encode()).hexdigest()[:12]
    return f"{socket.gethostname()[:64]}-{digest}" if path else ""


def scheduled(output: SchedulerOutput) -> list[Scheduled]:
    """The requests that compute something in a step."""
    counts = output.num_scheduled_tokens
    parts = [
        Scheduled(new.req_id, new.num_computed_tokens, counts.get(new.req_id, 0), ids, True)
        for new in output.scheduled_new_reqs
        for ids in [_single(new.block_ids)]
    ]
    cached = output.scheduled_cached_reqs
    for place, request in enumerate(cached.req_ids):
        parts.append(
            Scheduled(
                request,
                cached.num_computed_tokens[place],
                counts.get(request, 0),
                _single(cached.new_block_ids[place]),
                request in cached.resumed_req_ids,
            )
        )
    return parts


def blocks_of(output: SchedulerOutput) -> Callable[[str], Sequence[int] | None]:
    """All blocks of a request in a step, where this release of vLLM has them."""
    state = getattr(output, "kv_connector_block_state", None)
    table_get = getattr(state, "get_block_ids", None)
    if table_get is None:
        table = getattr(state, "block_ids", None)
        table_get = table.get if isinstance(table, Mapping) else lambda _: None

    def blocks(request: str) -> Sequence[int] | None:
        found = table_get(request)
        return None if found is None else _single(found)

    return blocks


_SOURCES = {"memory": "HOST", "heap": "HOST", "disk": "DISK", "fs": "DISK"}
"""vLLM's names for the places where stores keep chunks; other places have none."""


def by_source(
    tokens: Mapping[str, int], total: int, tiers: Sequence[TierSettings]
) -> dict[Any, int]:
    """Tokens by tier as tokens by vLLM's ``CacheHitSource``, *total* altogether."""
    sources = import_module("vllm.v1.metrics.cache_hit_source").CacheHitSource
    stores = {tier.name: tier.store for tier in tiers}
    counted: dict[Any, int] = {}
    rest = total - sum(tokens.values())
    for tier, amount in (*tokens.items(), ("", rest)):
        if amount > 0:
            name = _SOURCES.get(stores.get(tier, ""), "EXTERNAL_UNSPECIFIED")
            counted[sources[name]] = counted.get(sources[name], 0) + amount
    return counted


def published(found: Sequence[BlockEvent]) -> list[Any]:
    """The changes of the tiers, as vLLM's events."""
    events = import_module("vllm.distributed.kv_events")
    convert = import_module("vllm.v1.core.kv_cache_utils").maybe_convert_block_hash
    made: list[Any] = []
    for one in found:
        chunk = one.chunk
        hashes = [convert(known) for known in chunk.hashes]
        if one.stored:
            made.append(
                events.BlockStored(
                    block_hashes=hashes,
                    parent_block_hash=None if chunk.parent is None else convert(chunk.parent),
                    token_ids=list(chunk.tokens),
                    block_size=chunk.block,
                    lora_id=None,
                    medium=one.medium,
                    lora_name=chunk.lora or None,
                )
            )
        else:
            made.append(events.BlockRemoved(block_hashes=hashes, medium=one.medium))
    return made


def _single(groups: Sequence[Sequence[int]] | None) -> Sequence[int]:
    """The blocks of the only group of layers there is."""
    if groups is None:
        return ()
    (blocks,) = groups
    return blocks
