"""Every field of vLLM's configuration, against the namespace: all that KV can depend on is named.

A field that is in none of the lists here is named, too: a new release of vLLM may miss the KV
of an older one, and never takes it for its own. The tests compare the lists with the fields of
the installed vLLM, so that each new field needs a decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

_LONGEST = 64
"""Characters of a value that are written as they are; of longer ones a digest is."""

SECTIONS = {
    "model_config": "model",
    "model_config.multimodal_config": "media",
    "cache_config": "cache",
    "load_config": "load",
    "attention_config": "attention",
    "mamba_config": "mamba",
    "kernel_config": "kernel",
    "parallel_config": "parallel",
    "lora_config": "adapters",
}
"""Parts of vLLM's configuration whose fields are examined one by one, and their names here."""

WHOLE = {"additional_config": "additional"}
"""Parts that are named as a whole."""

BY_OTHERS: Mapping[str, str] = {
    "model_config": "model model_weights revision hf_config hf_text_config hf_config_path"
    " hf_overrides dtype max_model_len quantization multimodal_config is_submodel_config"
    " word_embeddings_untied_by_checkpoint",
    "cache_config": "block_size user_specified_block_size sliding_window is_attention_free"
    " kv_cache_layout effective_attention_block_size user_specified_mamba_block_size",
    "parallel_config": "pipeline_parallel_size tensor_parallel_size rank world_size"
    " prefill_context_parallel_size decode_context_parallel_size",
    "load_config": "download_dir",
    "": "model_config cache_config load_config attention_config mamba_config kernel_config"
    " parallel_config lora_config speculative_config quant_config diffusion_config"
    " weight_transfer_config device_config",
}
"""Fields that decide about KV and are in the namespace by another way.

They are in the digest of the weights and of the model's configuration as it is in force, in the
layout, in the slice of a rank, in the facts about opaque blocks, in the adapter of a request; or
the engine does not start with them (context parallelism, diffusion, weights that are replaced).
Of speculative decoding only a draft's weights and configuration are named: its KV decides
how many tokens are accepted, never which.
"""

UNRELATED: Mapping[str, Mapping[str, str]] = {
    "Where and when something is computed and kept, not what; sums may round differently.": {
        "model_config": "enforce_eager disable_cascade_attn enable_sleep_mode sleep_mode_backend"
        " sleep_preserve_parameter_names sleep_mode_offload_cudagraph enable_nccl_comm_suspend"
        " enable_cumem_allocator renderer_num_workers",
        "model_config.multimodal_config": "mm_encoder_tp_mode mm_encoder_attn_backend"
        " mm_tensor_ipc mm_ipc_gpu_memory_gb skip_mm_profiling limit_per_prompt"
        " mm_processor_cache_gb mm_processor_cache_type mm_shm_cache_max_object_size_mb",
        "cache_config": "gpu_memory_utilization num_gpu_blocks_override num_gpu_blocks"
        " num_cpu_blocks simple_cpu_offload_num_blocks kv_cache_memory_bytes"
        " kv_cache_size_tokens kv_cache_max_concurrency"
        " kv_offloading_size kv_offloading_backend swap_space cpu_offload_gb"
        " cpu_kvcache_space_bytes"
        " _block_size_resolved",
        "load_config": "safetensors_load_strategy safetensors_prefetch_num_threads"
        " safetensors_prefetch_block_size device use_tqdm_on_load pt_load_map_location",
        "attention_config": "backend backend_per_kind minimax_m3_msa_decode_backend"
        " flash_attn_version flash_attn_max_num_splits_for_cuda_graph"
        " tokenspeed_mla_min_split_kv tq_max_kv_splits_for_cuda_graph use_trtllm_attention"
        " mla_prefill_backend trtllm_ragged_backend sparse_mla_force_mqa"
        " sparse_mla_prefill_workspace_factor indexer_tp_shard_min_rows minimax_m3_indexer_cp"
        " flex_attn_block_m flex_attn_block_n flex_attn_q_block_size flex_attn_kv_block_size"
        " use_prefill_decode_attention use_cudnn_prefill use_trtllm_ragged_deepseek_prefill"
        " disable_flashinfer_prefill",
        "mamba_config": "backend ssu_algorithm",
        "kernel_config": "ir_op_priority enable_flashinfer_autotune"
        " enable_rocm_segmented_attn_autotune enable_cutedsl_warmup enable_jit_warmup"
        " sparse_indexer_topk_backend enable_bf16x3_router_gemm",
        "parallel_config": "data_parallel_size data_parallel_size_local data_parallel_rank"
        " data_parallel_rank_local data_parallel_master_ip data_parallel_rpc_port"
        " dp_sync_interval data_parallel_master_port data_parallel_backend"
        " data_parallel_external_lb data_parallel_hybrid_lb is_moe_model enable_hc_sp"
        " enable_expert_parallel enable_batch_sharded_sampling enable_ep_weight_filter"
        " enable_eplb eplb_config expert_placement_strategy all2all_backend"
        " max_parallel_loading_workers disable_custom_all_reduce enable_shm_tensor_arena"
        " enable_elastic_ep elastic_ep_max_dp_size enable_dbo ubatch_size"
        " dbo_decode_token_threshold dbo_prefill_token_threshold"
        " disable_nccl_for_dp_synchronization ray_workers_use_nsight ray_runtime_env"
        " placement_group distributed_executor_backend master_addr master_port node_rank nnodes"
        " numa_bind numa_bind_nodes numa_bind_cpus assigned_physical_gpu_ids"
        " distributed_timeout_seconds cpu_distributed_timeout_seconds"
        " _data_parallel_master_port_list _coord_store_port dcp_kv_cache_interleave_size"
        " dcp_comm_backend dcp_q_replicate cp_kv_cache_interleave_size"
        " _allow_auto_resolve_cp_interleave_size data_parallel_index _api_process_count"
        " _api_process_rank enable_fault_tolerance fault_tolerance_config worker_cls"
        " sd_worker_cls",
        "": "scheduler_config offload_config engram_config compilation_config"
        " optimization_level performance_mode shutdown_timeout kv_transfer_config"
        " ec_transfer_config ec_manager_config instance_id",
    },
    "Before there are tokens, or after there is KV.": {
        "model_config": "runner convert task tokenizer tokenizer_mode tokenizer_revision"
        " skip_tokenizer_init served_model_name allowed_local_media_path allowed_media_domains"
        " hf_token generation_config override_generation_config logits_processors"
        " io_processor_plugin pooler_config return_sampling_mask max_logprobs logprobs_mode"
        " use_fp64_gumbel enable_trace_replay allow_deprecated_quantization"
        " enable_return_routed_experts",
        "model_config.multimodal_config": "interleave_mm_strings mm_encoder_fp8_scale_save_path"
        " mm_encoder_fp8_scale_save_margin",
        "": "structured_outputs_config observability_config logging_config profiler_config"
        " kv_events_config reasoning_config aux_output_config watermark_config watchdog_config",
    },
    "Of requests: what decides about their KV is in the namespace of each, or they have none.": {
        "model_config": "seed enable_prompt_embeds",
        "model_config.multimodal_config": "mm_hasher_algorithm enable_mm_embeds",
        "lora_config": "max_lora_rank max_loras fully_sharded_loras max_cpu_loras lora_dtype"
        " default_mm_loras specialize_active_lora max_lora_cls_labels",
    },
    "How vLLM names and finds blocks by itself.": {
        "cache_config": "enable_prefix_caching prefix_caching_hash_algo prefix_match_unit"
        " prefix_cache_retention_interval hash_block_size cache_hit_alignment_tokens"
        " enable_mamba_shared_prefix_checkpoint enable_mamba_fine_grained_prefix_cache",
    },
}
"""Fields that KV cannot depend on, by the reason."""

NAMED: Mapping[str, str] = {
    "model_config": "trust_remote_code code_revision config_format quantization_config"
    " model_class_overrides model_impl override_attention_dtype disable_sliding_window"
    " spec_target_max_model_len",
    "model_config.multimodal_config": "language_model_only media_io_kwargs mm_processor_kwargs"
    " mm_device_do_normalize mm_encoder_only mm_encoder_attn_dtype mm_encoder_fp8_scale_path"
    " video_pruning_rate video_pruning_method allow_missing_mm_embeddings",
    "cache_config": "cache_dtype calculate_kv_scales kv_cache_dtype_skip_layers"
    " mamba_page_size_padded skip_page_size_padded mamba_block_size mamba_cache_dtype"
    " mamba_ssm_cache_dtype mamba_cache_mode replayssm_buffer_len use_replayssm"
    " use_kda_recoverssm kv_sharing_fast_prefill swa_bounded_replay",
    "load_config": "load_format model_loader_extra_config ignore_patterns",
    "attention_config": "disable_flashinfer_q_quantization use_prefill_query_quantization"
    " indexer_kv_dtype use_fp4_indexer_cache indexer_sparse_logits hisparse_config use_non_causal",
    "mamba_config": "enable_stochastic_rounding stochastic_rounding_philox_rounds",
    "kernel_config": "moe_backend linear_backend linear_backend_per_quant monokernel",
    "parallel_config": "worker_extension_cls",
    "lora_config": "target_modules enable_tower_connector_lora enable_mixed_moe_lora_format"
    " enable_moe_shared_loras",
    "": "additional_config",
}
"""Fields that are in the namespace wherever they differ from vLLM's defaults."""

_SAME_FILES = {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer"}
"""Ways to load that read the same tensors of a checkpoint."""


def decided(section: str) -> AbstractSet[str]:
    """The fields of a part of vLLM's configuration that are in a list here."""
    lists = [NAMED, BY_OTHERS, *UNRELATED.values()]
    return {name for found in lists for name in found.get(section, "").split()}


def options_of(config: object) -> dict[str, str]:
    """The fields that differ from vLLM's defaults and that KV may depend on, by name.

    Args:
        config: vLLM's; a part of it that is no dataclass is left out.
    """
    found = {}
    for section, name in SECTIONS.items():
        part: object = config
        for step in section.split("."):
            part = getattr(part, step, None)
        for option, value in _changed(section, part):
            if not option.startswith("mamba_") or _has_states(config):
                found[f"{name}.{option}"] = value
    for section, name in WHOLE.items():
        if whole := getattr(config, section, None):
            found[name] = text_of(whole)
    return found


def _has_states(config: object) -> bool:
    """True if a model has states: vLLM sets their options by the processor that it finds."""
    model = getattr(config, "model_config", None)
    return any(getattr(model, name, True) for name in ("is_hybrid", "has_inner_state"))


def _changed(section: str, part: object) -> Iterator[tuple[str, str]]:
    if not is_dataclass(part) or isinstance(part, type):
        return
    left_out = decided(section) - set(NAMED.get(section, "").split())
    for field in fields(part):
        value = getattr(part, field.name, None)
        if field.name in left_out or value == _default(field) or not _is_set(value):
            continue
        if field.name == "load_format" and _plain(value) in _SAME_FILES:
            continue
        yield field.name, text_of(_with_content(field.name, value))


def _is_set(value: object) -> bool:
    """True if a value is set: ``None`` and empty collections are the same."""
    if isinstance(value, Sequence | AbstractSet | Mapping):
        return bool(value)
    return value is not None


def _default(field: Any) -> object:
    """The default of a field; pydantic's ``Field`` has it one level deeper."""
    where = field
    if field.default is not MISSING and hasattr(field.default, "default_factory"):
        where = field.default
    factory = where.default_factory
    if factory not in (None, MISSING):
        return factory()
    return where.default


def _with_content(name: str, value: object) -> object:
    """The digest of a file's content in place of its path; any other value as it is."""
    if name.endswith("_path") and isinstance(value, str) and Path(value).is_file():
        return sha256(Path(value).read_bytes()).hexdigest()
    return value


def text_of(value: object) -> str:
    """*value* as a short text; equal values have equal ones in every process."""
    plain = _plain(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True)
    return text if len(text) <= _LONGEST else digest_of_value(value)


def digest_of_value(value: object) -> str:
    """A digest of *value*: 32 characters."""
    return sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()[:32]


def _plain(value: object) -> object:
    """*value* as JSON's types; other kinds of objects as their fields, or as their ``repr``."""
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((_plain(inner) for inner in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        pairs = {field.name: _plain(getattr(value, field.name, None)) for field in fields(value)}
        return {type(value).__name__: pairs}
    as_dict = getattr(value, "to_dict", None)
    if callable(as_dict):
        return _plain(as_dict())
    return repr(value)
