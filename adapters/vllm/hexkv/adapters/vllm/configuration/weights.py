"""Watches if a running vLLM still has the weights that its KV is named after.

All that changes weights in vLLM's workers goes through one method of its executor: it calls them
with ``collective_rpc``, by the name of a method or with any callable. That method is wrapped in the
process that plans, where nothing is planned while a call is under way. So the cache stops before
the first byte changes, and all ranks stop at once.

No new name begins for changed weights: vLLM's own memory may still hold KV of both, and KV computed
from it would be stored. The cache goes on only if weights were dropped, and the same ones are
loaded before anything was computed or loaded in between.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from hashlib import sha256
from inspect import signature
from typing import Any

import torch

from hexkv.adapters.vllm.configuration.identity import weights_at
from hexkv.adapters.vllm.guard import guarded

log = logging.getLogger("vllm.hexkv")

Call = Callable[[], object]

_KEEPING = (
    "execute_model sample_tokens take_draft_token_ids execute_dummy_batch synchronize_device"
    " check_health get_kv_connector_handshake_metadata get_kv_cache_spec"
    " get_supported_kv_cache_layouts set_kv_cache_layout get_simple_cpu_offload_num_cpu_blocks"
    " initialize_from_config compile_or_warm_up_model determine_available_memory"
    " update_max_model_len get_supported_tasks supports_draft_weight_updates"
    " add_lora remove_lora pin_lora list_loras reset_mm_cache reset_encoder_cache shutdown profile"
    " annotate_profile save_sharded_state save_tensorized_model compute_weight_checksums"
    " get_model_inspection get_compilation_match_table get_encoder_timing_stats"
    " release_late_interaction_query_cache checkpoint_prepare checkpoint_restore"
    " init_weight_transfer_engine shutdown_weight_transfer_engine handle_ft_command adjust_rank"
    # Experts move between ranks; their weights stay the model's.
    " elastic_ep_execute reinitialize_distributed"
)
KEEPING = frozenset(_KEEPING.split())
"""Methods of vLLM's workers that leave a model's weights as they are. Adapters are watched in the
workers: see :mod:`hexkv.adapters.vllm.configuration.lora`."""

_CHANGING = (
    "start_weight_update start_draft_weight_update update_weights finish_weight_update"
    " load_model reset_weights"
)
CHANGING = frozenset(_CHANGING.split())
"""Methods that change them. The effect of other methods is seen by :func:`fingerprint`."""

_SAMPLES = 1 << 16
"""Bytes of a tensor in its fingerprint."""

ARGUMENTS: Mapping[str, Sequence[str]] = {
    "discard": ("tags",),
    "reload_weights": ("weights_iterator", "weights_path", "is_checkpoint_format"),
    "sleep": ("level",),
    "update_config": ("overrides",),
    "wake_up": ("tags",),
}
"""Methods whose arguments decide whether they change weights, and the names of these."""


class Weights:
    """The weights of one engine. For the thread that plans.

    Args:
        first: gives the digest of those that vLLM started with; empty if it is not known.
    """

    def __init__(self, first: Callable[[], str] = lambda: "") -> None:
        self.intact = True
        """True while the model has the weights that its KV is named after."""

        self.changes = 0
        """Times that it lost them."""

        self._first = first
        self._mixed = False
        """True if no reload brings the cache back."""

        self._asleep = False
        self._moved = False
        """True if the workers' configuration may not be the one that is known here."""

        self._place: str | None = None
        """The place that the last reload read; ``None``: that of vLLM's start."""

        self._inside = self._reloading = False

    def computed(self) -> None:
        """Note that tokens are computed. vLLM may keep their KV, even if the weights changed."""
        self._mixed = self._mixed or not self.intact

    def loads(self) -> None:
        """Note that a model's own ``load_weights`` is about to be called."""
        if not self._reloading:
            self._lost(_replaced("load_weights"))

    def call(
        self, config: Any, method: object, bound: Mapping[str, Any], go: Call, fingerprints: Call
    ) -> object:
        """Run *go* in the workers, and note changes of the weights.

        Args:
            config: vLLM's.
            method: the name of the workers' method, or a callable.
            bound: arguments of ``collective_rpc``.
            go: the call.
            fingerprints: gives the ranks' fingerprints.
        """
        if self._inside:  # an executor that calls another one's
            return go()
        self._inside = True
        try:
            given = dict(zip(ARGUMENTS.get(str(method), ()), bound.get("args") or (), strict=False))
            given |= bound.get("kwargs") or {}
            if method == "reload_weights":
                return self._reload(config, given, go)
            if isinstance(method, str) and (method in CHANGING or method in ARGUMENTS):
                self._begins(method, given)
                return go()
            return self._unknown(method, go, None if bound.get("non_block") else fingerprints)
        finally:
            self._inside = False

    def _begins(self, method: str, given: Mapping[str, Any]) -> None:
        """Note that a method is about to be called."""
        tags = given.get("tags")
        match method:
            case "sleep":
                self._asleep = True
                if given.get("level", 1) != 1:
                    self._end(_DROPPED)
            case "wake_up":
                self._asleep = self._asleep and tags is not None and "weights" not in tags
            case "discard":
                if tags is None or "weights" in tags:
                    self._asleep = True
                    self._end(_DROPPED)
            case "update_config":
                self._moved = True
            case _:
                self._lost(_replaced(method))

    def _reload(self, config: Any, given: Mapping[str, Any], go: Call) -> object:
        """Load weights from the place in *given*: they may be the first ones."""
        if given.get("weights_path") is not None:
            self._place = given["weights_path"]
        from_files = given.get("weights_iterator") is None
        raw = from_files and given.get("is_checkpoint_format", True)
        same = raw and self._first_there(config)
        self._mixed = self._mixed or not same
        self.changes += self.intact
        self.intact, loaded, self._reloading = False, False, True
        try:
            done = go()
            loaded = True
        finally:
            self._reloading = False
            if loaded:  # files that change during the load may be read before it or after
                same = same and self._first_there(config)
                self._mixed = self._mixed or not same
            self._reloaded(same=same and loaded)
        return done

    def _reloaded(self, *, same: bool) -> None:
        if same and self._mixed:
            log.error(
                "the model has the weights again that it started with, but had others in between,"
                " or computed without any: nothing is loaded or stored until vLLM starts anew"
            )
        elif same:
            self.intact = True
            log.info("the model has the weights again that it started with: the cache goes on")
        else:
            log.error("%s", _replaced("reload_weights"))

    @guarded(False)
    def _first_there(self, config: Any) -> bool:
        """True if the weights that a reload reads are those that vLLM started with."""
        first = "" if self._moved else self._first()
        return bool(first) and weights_at(config, self._place) == first

    def _unknown(self, method: object, go: Call, fingerprints: Call | None) -> object:
        """Call a method that may or may not change weights."""
        asks = None if self._asleep else fingerprints  # asleep, there is no memory to look at
        before = _taken(asks)
        try:
            return go()
        finally:
            if before is None or _taken(asks) != before:
                name = method if isinstance(method, str) else getattr(method, "__name__", "a call")
                self._lost(_replaced(str(name)))

    def _lost(self, why: str) -> None:
        """End the cache for good: a reload need not reach all that has changed."""
        self._mixed = True
        self._end(why)

    def _end(self, why: str) -> None:
        if self.intact:
            self.intact = False
            self.changes += 1
            log.error("%s", why)


_DROPPED = (
    "vLLM drops the model's weights (sleep at level 2): nothing is loaded or stored until"
    " reload_weights has loaded the same ones"
)


def _replaced(method: str) -> str:
    return (
        f"the model's weights were replaced ({method}): nothing is loaded or stored until vLLM"
        " starts anew"
    )


def _taken(fingerprints: Call | None) -> object:
    """The ranks' fingerprints; ``None`` where one has none."""
    try:
        return None if fingerprints is None else fingerprints()
    except Exception as error:  # noqa: BLE001 - whatever a model is made of: it counts as changed
        log.warning("the model's weights cannot be looked at: %s", error)
        return None


_watched: list[tuple[str, weakref.ref[Weights]]] = []
"""By vLLM's name of the engine. MultiConnector may have several for one."""


def watch(executor: Any, engine: str, weights: Weights) -> None:
    """Report every call that *engine* makes to its workers to *weights* from now on.

    Args:
        executor: vLLM's class ``Executor``; its subclasses are wrapped. Twice is allowed.
        engine: vLLM's name of it.
        weights: seen for as long as the object lives.
    """
    _watched[:] = [(name, known) for name, known in _watched if known() is not None]
    _watched.append((engine, weakref.ref(weights)))
    found, wrapped = [executor], 0
    while found:
        kind = found.pop()
        found += kind.__subclasses__()
        plain = vars(kind).get("collective_rpc")
        if plain is not None and kind is not executor:
            wrapped += 1
            if not hasattr(plain, "hexkv"):
                kind.collective_rpc = _watching(plain)
    if not wrapped:
        log.warning("this vLLM does not say when weights change: restart it whenever they do")


def _seen_by(config: Any) -> list[Weights]:
    """The weights that a call of the engine with *config* concerns; all if that is not clear."""
    transfer = getattr(config, "kv_transfer_config", None)
    if transfer is None:
        return []
    found = [(name, weights) for name, known in _watched if (weights := known()) is not None]
    own_weights = [weights for name, weights in found if name == transfer.engine_id]
    return own_weights or [weights for _, weights in found]


def _watching(plain: Callable[..., object]) -> Callable[..., object]:
    names = signature(plain)

    @wraps(plain)
    def collective_rpc(executor: Any, method: object, *args: Any, **named: Any) -> object:
        if not hasattr(executor, "hexkv"):
            executor.hexkv = True
            _watch_model(executor)
        if isinstance(method, str) and method in KEEPING:
            return plain(executor, method, *args, **named)
        go: Call = partial(plain, executor, method, *args, **named)
        config = executor.vllm_config
        bound = names.bind(executor, method, *args, **named).arguments
        for weights in _seen_by(config):
            fingerprints = partial(plain, executor, fingerprint)
            go = partial(weights.call, config, method, bound, go, fingerprints)
        return go()

    collective_rpc.hexkv = True  # type: ignore[attr-defined]  # a mark: wrapped once
    return collective_rpc


def _watch_model(executor: Any) -> None:
    """Watch the ``load_weights`` of a model in this process, too, where any code may call it."""
    try:
        model = executor.driver_worker.get_model()
        plain = model.load_weights
    except Exception:  # noqa: BLE001 - it is elsewhere, or has none
        return

    @wraps(plain)
    def load_weights(*args: Any, **named: Any) -> object:
        for weights in _seen_by(executor.vllm_config):
            weights.loads()
        return plain(*args, **named)

    model.load_weights = load_weights


def fingerprint(worker: Any) -> str:
    """A cheap digest of the weights of a worker's model, for before and after a call.

    Of each parameter where it lies, how often it was written to in ways that PyTorch counts, and
    some bytes from all over it. Weights that were trained, merged or loaded differ nearly
    everywhere. A few values that are written through ``.data`` can be missed, and so can tensors
    that are no parameters.
    """
    digest = sha256()
    models = [worker.get_model()]
    if (draft := getattr(worker, "get_draft_model", lambda: None)()) is not None:
        models.append(draft)
    for model in models:
        for name, parameter in model.named_parameters():
            for tensor in _parts(parameter):
                facts = name, tensor.dtype, list(tensor.shape), tensor.stride(), _version(tensor)
                digest.update(repr((*facts, tensor.data_ptr())).encode())
                digest.update(_sample(tensor))
    return digest.hexdigest()


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """The tensors that hold the bytes of *tensor*, which may be made of several."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    else:
        yield tensor


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _sample(tensor: torch.Tensor) -> bytes:
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    step = max(1, len(flat) // _SAMPLES) | 1  # odd: every byte of a value has its turn
    return flat[::step].cpu().numpy().tobytes()
