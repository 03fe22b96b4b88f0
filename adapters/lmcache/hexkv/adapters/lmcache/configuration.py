"""``hexkv config from-lmcache``: a configuration of LMCache as one of hexkv.

``docs/from-lmcache.md`` has the same for people. Keys and defaults are those of LMCache 0.5.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml

from hexkv.plugins.cli.output import new_app, refuse, run_app
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.places import suggestion
from hexkv.plugins.configuration.sources import ConfigLayers, merge_file
from hexkv.plugins.configuration.values import Value
from hexkv.ports import ConfigError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONVERTED = _words(
    "chunk_size local_cpu max_local_cpu_size local_cpu_use_hugepages local_disk"
    " max_local_disk_size remote_url remote_serde pre_caching_hash_algorithm retrieve_locations"
    " store_location blocking_timeout_secs lookup_timeout_ms pin_timeout_sec cache_policy gds_path"
    " use_gds gds_backend"
)
"""Keys that change the result."""

_NOT_NEEDED = {
    "a part of the pool is always left to requests": "reserve_local_cpu_size",
    "engines that load layer by layer do": "use_layerwise",
    "the connector for vLLM stores generated tokens (write_generated)": "save_decode_cache",
    "the connector for vLLM sets chunk.tail": "save_unfull_chunk",
    "a prompt is found by its tokens, and KV passes through the pool": "enable_pd pd_role"
    " pd_buffer_size pd_buffer_device pd_peer_host pd_peer_init_port pd_peer_alloc_port"
    " pd_peer_query_port pd_proxy_host pd_proxy_port pd_allocation_timeout_sec"
    " pd_shutdown_timeout_sec pd_condition_poll_interval_sec pd_max_prefill_len pd_backend_mode"
    " pd_skip_proxy_notification pd_bidirectional",
    "each page of the pool is taken at its first use": "enable_lazy_memory_allocator"
    " lazy_memory_initial_ratio lazy_memory_expand_trigger_ratio lazy_memory_step_ratio"
    " lazy_memory_safe_size",
    "the scheduler's half asks its ranks": "external_lookup_client lookup_server_worker_ids"
    " enable_scheduler_bypass_lookup",
    "loads go on beside the steps where a tier is remote": "enable_async_loading",
    "plug-ins are packages, found when they are installed": "runtime_plugin_locations"
    " storage_plugins remote_storage_plugins",
    "hexkv plan judges a trace": "enable_chunk_statistics chunk_statistics_auto_start_statistics"
    " chunk_statistics_auto_exit_timeout_hours chunk_statistics_auto_exit_target_unique_chunks"
    " chunk_statistics_strategy",
    "hexkv does the same without it": "py_enable_gc use_gpu_connector_v3 pin_check_interval_sec",
    "the doubles of hexkv-contracts record calls": "audit_actual_remote_url",
}
"""Reason, and the keys that hexkv does without."""

_BY_HAND = {
    "segments and a record of hexkv blend calibrate (docs/blending.md)": "enable_blending"
    " blend_recompute_ratios blend_thresholds blend_check_layers blend_min_tokens"
    " blend_special_str",
    "peers, directory and a tier `store: peers` (docs/fleet.md)": "enable_p2p p2p_host"
    " p2p_init_ports p2p_lookup_ports transfer_channel nixl_backends nixl_buffer_size"
    " nixl_buffer_device",
    "node, and hexkv node on each machine (docs/node.md)": "mp_host mp_port",
    "directory, and hexkv fleet (docs/fleet.md)": "enable_controller lmcache_instance_id"
    " controller_pull_url controller_reply_url lmcache_worker_ports lmcache_worker_ids"
    " lmcache_worker_heartbeat_delay_time lmcache_worker_heartbeat_time",
    "admin (docs/administration.md)": "internal_api_server_enabled internal_api_server_host"
    " internal_api_server_port_start internal_api_server_include_index_list"
    " internal_api_server_socket_path_prefix",
    "observe.events (docs/observing.md)": "enable_kv_events",
    "compute_rate, the tokens that the engine computes per second": "min_retrieve_tokens"
    " hit_miss_ratio",
    "the pool `pinned` of hexkv-cuda takes a node of the machine's memory": "numa_mode",
    "the settings of each tier": "extra_config",
    "a tier for each directory has an equal part of the budget": "local_disk_path_sharding",
}
"""Counterpart, and the keys whose values cannot be carried over."""

_MISSING = _words(
    "gds_path_sharding gds_buffer_size maru_path maru_pool_size priority_limit remote_config_url"
    " app_id script_allowed_imports run_script_api_enabled enable_hidden_state_cache"
    " max_hidden_state_cpu_size hidden_state_layers hidden_states_retrieve_mode"
)
"""Keys of what hexkv does not do."""

_LEFT_OUT = {
    name: f"{word}: {why}"
    for word, table in (("not needed", _NOT_NEEDED), ("set by hand", _BY_HAND))
    for why, names in table.items()
    for name in names.split()
} | dict.fromkeys(_MISSING, "missing in hexkv")

KNOWN = _CONVERTED | _LEFT_OUT.keys()
"""All keys of LMCache's configuration."""

_BACKENDS = {"LocalCPUBackend": "memory", "LocalDiskBackend": "disk", "GdsBackend": "gds"}
_POLICIES = {"LRU": "lru", "LFU": "lfu", "FIFO": "fifo", "MRU": "mru"}
_REDIS = {"redis-sentinel": "sentinel", "redis-cluster": "cluster"}


@dataclass
class Conversion:
    """A configuration of hexkv, and notes about keys that it lacks."""

    values: dict[str, Value] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """By LMCache's key."""

    @property
    def lossless(self) -> bool:
        """True if everything of the former configuration is in force."""
        return all(note.startswith("not needed") for note in self.notes.values())


def convert(given: Mapping[str, Any]) -> Conversion:
    """Return the keys of LMCache *given* as a configuration of hexkv.

    Raises:
        ConfigError: a value is none that LMCache takes.
    """
    made = Conversion()
    for name in given:
        if name not in KNOWN:
            made.notes[name] = f"no key of LMCache{suggestion(name, sorted(KNOWN), noun='known')}"
        elif name in _LEFT_OUT:
            made.notes[name] = _LEFT_OUT[name]
    if "chunk_size" in given:
        made.values["chunk"] = {"size": given["chunk_size"]}
    if "pre_caching_hash_algorithm" in given:
        if (name := str(given["pre_caching_hash_algorithm"])) in ("sha256", "blake3"):
            made.values["hash"] = name
        else:
            made.notes["pre_caching_hash_algorithm"] = f"not needed: {name} is replaced by sha256"
    _deadlines(given, made)
    _tiers(given, made)
    return made


def _deadlines(given: Mapping[str, Any], made: Conversion) -> None:
    deadlines: dict[str, Value] = {}
    if "lookup_timeout_ms" in given:
        deadlines["lookup"] = _number(given, "lookup_timeout_ms", 0) / 1000
    if "blocking_timeout_secs" in given:
        deadlines["retrieve"] = deadlines["store"] = _number(given, "blocking_timeout_secs", 0)
    if "pin_timeout_sec" in given:
        deadlines["pin"] = _number(given, "pin_timeout_sec", 0)
    if deadlines:
        made.values["deadlines"] = deadlines


def _tiers(given: Mapping[str, Any], made: Conversion) -> None:
    memory = _number(given, "max_local_cpu_size", 5.0)
    in_memory = given.get("local_cpu", True) is True
    pool: dict[str, Value] = {"bytes": _size(memory * (1.1 if in_memory else 1.0))}
    if given.get("local_cpu_use_hugepages"):
        pool["settings"] = {"huge_pages": True}
    made.values["pool"] = pool
    tiers: list[dict[str, Any]] = []
    if in_memory:
        tiers.append({"store": "memory", "budget": _size(memory)})
    roots = _directories(given.get("local_disk"))
    for number, root in enumerate(roots):
        room = _number(given, "max_local_disk_size", 0.0) / len(roots)
        named = {"name": f"disk {number + 1}"} if len(roots) > 1 else {}
        budget = {"budget": _size(room)} if room else {}
        tiers.append({"store": "disk", **named, **budget, "settings": {"root": root}})
    if given.get("use_gds", True) and (roots := _directories(given.get("gds_path"))):
        tiers.append({"store": "gds", "settings": {"root": roots[0]}})
    if url := given.get("remote_url"):
        if remote := _remote(str(url)):
            tiers.append(remote | _serde(given, made))
        else:
            scheme = str(url).partition("://")[0]
            made.notes["remote_url"] = f"set by hand: a tier for {scheme}:// (hexkv adapters)"
    _rules(given, tiers, made)
    if not tiers:
        raise ConfigError("no tier is left: LMCache kept KV in nothing that hexkv has a tier for")
    made.values["tiers"] = [*tiers]


def _rules(given: Mapping[str, Any], tiers: list[dict[str, Any]], made: Conversion) -> None:
    """Set the rules of LMCache that hexkv has for each tier."""
    policy = str(given.get("cache_policy", "LRU"))
    if policy.upper() not in _POLICIES:
        made.notes["cache_policy"] = f"set by hand: {policy} is no policy of hexkv"
    elif policy.upper() != "LRU":
        for tier in tiers:
            tier["policy"] = _POLICIES[policy.upper()]
    reads, writes = given.get("retrieve_locations"), given.get("store_location")
    for tier in tiers:
        names = {name for name, store in _BACKENDS.items() if store == tier["store"]}
        names = names or {"RemoteBackend"}
        if reads and not names & set(reads):
            tier["read"] = False
        if writes and writes not in names:
            tier["write"] = "none"


def _directories(value: object) -> list[str]:
    """Return the directories that a text of LMCache lists."""
    if value is True:
        raise ConfigError("local_disk: should be the path of a directory")
    parts = [] if value in (None, False) else str(value).split(",")
    return [part.strip().removeprefix("file://") for part in parts if part.strip()]


def _remote(url: str) -> dict[str, Any] | None:
    """Return the tier for a remote URL; ``None`` if there is no store of that kind."""
    scheme, _, rest = url.partition("://")
    match scheme:
        case "redis" | "rediss":
            return {"store": "redis", "settings": {"url": url}}
        case "redis-sentinel" | "redis-cluster":
            login, at, hosts = rest.rpartition("@")
            first, *others = hosts.split(",")
            settings: dict[str, Any] = {"url": f"redis://{login}{at}{first}"}
            settings["topology"] = _REDIS[scheme]
            if others:
                settings["others"] = others
            return {"store": "redis", "settings": settings}
        case "lm":
            return {"store": "lm", "settings": {"address": rest.strip("/")}}
        case "infinistore":
            return {"store": "infinistore", "settings": {"address": urlsplit(url).netloc}}
        case "mooncakestore":
            return {"store": "mooncake", "settings": {"address": urlsplit(url).netloc}}
        case "fs":
            return {"store": "fs", "settings": {"root": urlsplit(url).path}}
    return None


def _serde(given: Mapping[str, Any], made: Conversion) -> dict[str, Any]:
    serde = given.get("remote_serde") or "naive"
    if serde == "cachegen":
        return {"serde": "cachegen"}
    if serde != "naive":
        made.notes["remote_serde"] = f"set by hand: {serde} is no serde of hexkv (hexkv serdes)"
    return {}


def _number(given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name}: should be a number")
    return value


def _size(gigabytes: float) -> str:
    """Return LMCache's gigabytes, 2^30 bytes each, as hexkv writes sizes."""
    whole = round(gigabytes * 1024)
    return f"{whole // 1024}GiB" if whole % 1024 == 0 else f"{whole}MiB"


def from_lmcache(
    file: Annotated[FilePath, typer.Argument(help="LMCache's YAML file.", show_default=False)],
) -> None:
    """Convert a configuration of LMCache, and list what could not be.

    Prints hexkv's YAML on stdout and a line for each key that is not in it on stderr. Exit code 1
    if one of them had an effect.
    """
    layers = ConfigLayers({})
    try:
        merge_file(layers, file)
        made = convert(layers.values)
        load(environ={}, overrides=made.values, source=str(file))
    except ConfigError as error:
        refuse(str(file), str(error).removeprefix(f"{file}: "))
    typer.echo(f"# Made of {file} by hexkv config from-lmcache.")
    typer.echo(yaml.safe_dump(made.values, sort_keys=False).rstrip())
    for name, note in made.notes.items():
        typer.echo(f"{layers.origins[(name,)]}: {name}: {note}", err=True)
    raise typer.Exit(0 if made.lossless else 1)


def run(arguments: Sequence[str]) -> int:
    """Run the command, as a plugin does."""
    app = new_app("Convert a configuration of LMCache.")
    app.command()(from_lmcache)
    return run_app(app, "hexkv config from-lmcache", arguments)
