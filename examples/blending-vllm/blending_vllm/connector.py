"""The connector, and the extension by which its worker half gets at the model.

``vllm serve MODEL --worker-extension-cls blending_vllm.connector.BlendingWorker`` and
``kv_connector_module_path`` ``blending_vllm.connector``: see the README.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, field
from typing import Any, Self

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from blending_vllm.own_pass import OwnPass, Span
from blending_vllm.segments import Settings, cut

log = logging.getLogger("vllm.blending")

SALT = "approximate:"
"""Begins the ``cache_salt`` of requests that may be blended while vLLM caches prefixes."""

_worker: Any = None
"""A weak reference to the worker of this process. vLLM makes one, and then its connector."""


class BlendingWorker:
    """For ``--worker-extension-cls``: vLLM makes it a base of its worker's class."""

    def __new__(cls, *_: object, **__: object) -> Self:
        # A worker never calls an extension's __init__; names without underscores could clash.
        global _worker
        made = super().__new__(cls)
        _worker = weakref.ref(made)
        return made

    def blending_counts(self) -> dict[str, int]:
        """Rows times layers so far, for ``collective_rpc``: whole, computed and alone."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().counts()


@dataclass
class Spans(KVConnectorMetadata):
    """What the workers have to blend before this step."""

    spans: list[Span] = field(default_factory=list)


class BlendingConnector(KVConnectorBase_V1):
    """Promises a prompt up to its last separator, and has a worker compute that by blending.

    Nothing is stored under any name of vLLM's, and vLLM's own prefix cache must not see blended
    blocks: with prefix caching only requests whose salt begins with :data:`SALT` are blended.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._settings = Settings.of(extra)
        self._salted_only = bool(vllm_config.cache_config.enable_prefix_caching)
        self._block = vllm_config.cache_config.block_size
        self._computed: dict[str, int] = {}
        self._spans: list[Span] = []
        self._pass: OwnPass | None = None
        self._failed: set[int] = set()
        self._refused = ""
        self._told = False
        if (
            role is KVConnectorRole.SCHEDULER
            and vllm_config.parallel_config.pipeline_parallel_size > 1
        ):
            raise ValueError("blending: pipeline stages are not supported; set it to 1")

    # The scheduler half.

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is delivered to anybody."""
        return False

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        tokens = request.prompt_token_ids
        if tokens is None or request.mm_features or request.lora_request is not None:
            return 0, False
        if self._salted_only and not (request.cache_salt or "").startswith(SALT):
            if not self._told:
                self._told = True
                log.warning(
                    "Prefix caching is on, so only requests whose cache_salt begins with %r are"
                    " blended; others are computed in full.",
                    SALT,
                )
            return 0, False
        found = cut(tokens, self._settings.separator)
        end = min(found[-1][1], len(tokens) - 1) if found else 0
        if end - num_computed_tokens < self._settings.least_tokens:
            return 0, False
        self._computed[request.request_id] = num_computed_tokens
        return end - num_computed_tokens, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        start = self._computed.pop(request.request_id, 0)
        if num_external_tokens:
            [own] = blocks.get_block_ids()
            tokens = list(request.prompt_token_ids[: start + num_external_tokens])
            self._spans.append(Span(tokens, start, list(own)))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        del scheduler_output
        spans, self._spans = self._spans, []
        return Spans(spans)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        del block_ids
        self._computed.pop(request.request_id, None)
        return False, None

    # The worker half.

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        del forward_context
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Spans)
        for span in metadata.spans:
            try:
                self._own_pass().blend(span)
            except Exception as error:  # noqa: BLE001 - it would end the engine
                # Every block behind the start, which the request has to itself.
                self._failed.update(span.blocks[span.start // self._block :])
                if str(error) != self._refused:
                    self._refused = str(error)
                    log.warning("Blending failed, vLLM computes the prompt instead: %s", error)

    def _own_pass(self) -> OwnPass:
        if self._pass is None:
            worker = _worker() if _worker else None
            if worker is None:
                name = f"{BlendingWorker.__module__}.{BlendingWorker.__qualname__}"
                raise RuntimeError(f"start vLLM with --worker-extension-cls {name}")
            self._pass = OwnPass(worker.model_runner, self._settings)
        return self._pass

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def counts(self) -> dict[str, int]:
        """Rows times layers so far."""
        return vars(self._pass.counts) if self._pass else {}

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Spans are complete when :meth:`start_load_kv` returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Nothing is saved: KV behind a blended span is approximate."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""
