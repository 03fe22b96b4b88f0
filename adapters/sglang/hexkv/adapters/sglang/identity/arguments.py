"""The arguments of SGLang that KV depends on: each argument is judged here.

An argument that matters is in the namespace where it is not SGLang's default, and so is an
argument that a newer version brings, until it is judged, too.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from hexkv.adapters.sglang.identity.files import FILES
from hexkv.kernels.weights import folder_of

log = logging.getLogger("hexkv.sglang")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAMED = _words(
    """
    attn_cp_size checkpoint_engine_wait_weights_before_ready context_length dcp_size
    download_dir dtype enable_lora kv_cache_dtype load_format lora_paths model_path page_size
    pp_size random_seed revision tp_size weight_cache_mode
    """
)
"""Arguments that :mod:`hexkv.adapters.sglang.identity.identity` reads: paths, ranks, pages, ..."""

JOINED = _words(
    """
    c128_page_size cp_strategy custom_weight_loader decrypted_config_file
    deepep_dispatcher_output_dtype disable_fast_image_processor dllm_algorithm
    dllm_algorithm_config enable_cp_decode_attn_tp enable_decoder_swa_bounded_replay
    enable_deepseek_v4_fp4_indexer enable_dsa_cache_layer_split
    enable_encoder_swa_bounded_replay enable_hisparse enable_int8_mamba_checkpoint
    enable_kv_cache_sharding enable_linear_replayssm enable_linear_replayssm_spec
    enable_mamba_cache_stochastic_rounding enable_megamoe_for_layernorm_sp enable_mis
    enable_page_major_kv_layout enable_precise_embedding_interpolation enable_prefill_cp
    enable_quant_communications enable_scattered_sconv enable_tf32_matmul
    enable_unified_memory enable_w4a4_mxfp4_megamoe experts_shared_outer_loras
    flashinfer_a2a_dispatch_type flashinfer_mxfp4_moe_precision forward_hooks hisparse_config
    image_processor_backend int8_mamba_ckpt_size is_embedding json_model_override_args
    kt_max_deferred_experts_per_token kt_method kt_num_gpu_experts kt_weight_path
    linear_replayssm_cache_len lora_target_modules mamba_cache_philox_rounds mamba_ssm_dtype
    mm_process_config model_config_parser model_impl model_loader_extra_config
    modelopt_checkpoint_restore_path modelopt_quant prefill_kv_cache_dequant_dtype
    prefill_only_disable_kv_cache qsa_indexer_dtype quantization quantization_param_path
    quantize_and_serve rl_on_policy_target rl_quant_profile
    """
)
"""Arguments that change KV beyond rounding, or the bytes of pages only SGLang understands."""

DRAFT = _words(
    """
    decrypted_draft_config_file enable_multi_layer_eagle speculative_algorithm
    speculative_draft_kv_cache_dtype speculative_draft_load_format
    speculative_draft_model_path speculative_draft_model_quantization
    speculative_draft_model_revision speculative_draft_sink_size speculative_draft_window_size
    speculative_enable_w4a4_mxfp4_megamoe speculative_token_map uno_lora_path
    """
)
"""Arguments that change the KV of a draft model, which lies in pools of its own."""

UNRELATED: dict[str, frozenset[str]] = {
    reason: _words(names)
    for reason, names in {
        "the proposed tokens, all of which the model itself verifies": """
        _speculative_draft_quantization_explicitly_set decoupled_spec_bind_endpoint
        decoupled_spec_connect_endpoints decoupled_spec_rank decoupled_spec_role
        enable_draft_weights_cpu_backup spec_trace_dir speculative_accept_threshold_acc
        speculative_accept_threshold_single speculative_adaptive speculative_adaptive_config
        speculative_attention_mode speculative_boundary_reduction
        speculative_dflash_block_size speculative_domino_candidate_pool_size
        speculative_draft_attention_backend speculative_dsa_topk_backend
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_dspark_block_size
        speculative_dspark_confidence_sts_path speculative_dspark_sps_table_path
        speculative_eagle_topk speculative_moe_a2a_backend speculative_moe_runner_backend
        speculative_ngram_capacity speculative_ngram_external_corpus_max_tokens
        speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
        speculative_ngram_match_type speculative_ngram_max_bfs_breadth
        speculative_ngram_max_trie_depth speculative_ngram_min_bfs_breadth
        speculative_num_draft_tokens speculative_num_steps
        speculative_use_block_verification speculative_use_rejection_sampling
        """,
        "which tokens are asked for and answered, not what the KV of tokens is": """
        allow_auto_truncate allowed_media_domains asr_max_buffer_seconds
        asr_max_concurrent_sessions batch_notify_size chat_template completion_template
        constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
        constrained_json_whitespace_pattern default_chat_template_kwargs
        disable_outlines_disk_cache enable_custom_logit_processor enable_fp32_lm_head
        enable_multimodal enable_streaming_session enable_strict_thinking enable_watermark
        encoder_only grammar_backend hf_chat_template_name incremental_streaming_output
        language_model_only language_only limit_mm_data_per_request
        media_url_max_file_size_mb mlx_enable_sampling preferred_sampling_params
        reasoning_parser sampling_backend sampling_defaults sampling_mask_max_tokens
        skip_tokenizer_init stream_interval stream_response_default_include_usage
        strip_thinking_cache tokenizer_backend tokenizer_mode tokenizer_path
        tool_call_parser tool_server trust_mm_content_hashes trust_request_chat_template
        watermark_config watermark_context_window watermark_default_enabled
        watermark_enforce_all watermark_key watermark_key_b watermark_max_probability
        watermark_mixing_probability
        """,
        "how requests come in, and how they are reported": """
        admin_api_key api_key aux_hidden_state_capture bucket_e2e_request_latency
        bucket_inter_token_latency bucket_time_to_first_token crash_dump_folder
        custom_sigquit_handler debug_tensor_dump_input_file debug_tensor_dump_layers
        debug_tensor_dump_output_folder decode_log_interval detokenizer_worker_num
        disable_tokenizer_batch_decode dist_init_addr dist_timeout
        dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout
        enable_adaptive_dispatch_to_encoder enable_broadcast_mm_inputs_process
        enable_cache_report enable_dynamic_batch_tokenizer enable_forward_pass_metrics
        enable_http2 enable_http_worker_reuseport enable_layerwise_nvtx_marker
        enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics
        enable_mm_global_cache enable_prefix_mm_cache enable_request_time_stats_logging
        enable_response_store enable_return_aux_hidden_states enable_return_hidden_states
        enable_return_indexer_topk enable_return_routed_experts enable_ssl_refresh
        enable_tokenizer_batch_encode enable_trace encoder_bootstrap_port
        encoder_register_urls encoder_transfer_backend encoder_urls
        engine_info_bootstrap_port expert_balancedness_report_mode
        expert_distribution_recorder_buffer_size expert_distribution_recorder_mode
        export_metrics_to_file export_metrics_to_file_dir extra_metric_labels
        fastapi_root_path file_storage_path forward_pass_metrics_ipc_name
        forward_pass_metrics_worker_id gated_launch_port gc_threshold
        gc_warning_threshold_secs generation_tokens_buckets grpc_mode grpc_port
        grpc_response_timeout_secs grpc_worker_threads host
        http2_initial_connection_window_size http2_max_concurrent_streams kv_canary
        kv_canary_real_data kv_canary_sweep_interval kv_events_config load_publish_endpoint
        load_snapshot_publish_interval log_level log_level_http log_requests
        log_requests_format log_requests_level log_requests_target mm_feature_transport
        mm_global_cache_backend mm_io_worker_num mm_preprocess_cache_size_mb
        mm_processor_worker_num msprobe_dump_config nccl_port numa_node otlp_service_name
        otlp_traces_endpoint port prompt_tokens_buckets return_aux_hidden_state_layer_ids
        return_hidden_states_mode return_input_ids return_output_ids served_model_name
        show_time_cost sidecar sidecar_args skip_server_warmup sleep_on_idle smg_grpc_mode
        smg_http_sidecar_port soft_watchdog_timeout ssl_ca_certs ssl_certfile ssl_keyfile
        ssl_keyfile_password stat_loggers tokenizer_metrics_allowed_custom_labels
        tokenizer_metrics_custom_labels_header tokenizer_worker_num trace_modules use_ray
        uvicorn_access_log_exclude_prefixes warmups watchdog_timeout weight_version
        """,
        "how the same weights are read, and where they are kept": """
        cpu_offload_gb delete_ckpt_after_loading enable_elastic_expert_backup
        enable_memory_saver enable_paged_experts enable_weights_cpu_backup kt_cpuinfer
        kt_threadpool_count lora_strict_loading model_checksum modelexpress_config
        modelopt_checkpoint_save_path modelopt_export_path offload_group_size offload_mode
        offload_num_in_group offload_prefetch_step paged_experts_num_resident
        ple_offload_backend ple_offload_dir ple_offload_embedding
        remote_instance_weight_loader_backend remote_instance_weight_loader_seed_instance_ip
        remote_instance_weight_loader_seed_instance_service_port
        remote_instance_weight_loader_send_weights_group_ports
        remote_instance_weight_loader_start_seed_via_transfer_engine
        startup_weight_load_mode trust_remote_code weight_cache_socket weight_cache_timeout
        weight_loader_disable_mmap weight_loader_drop_cache_after_load
        weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads
        """,
        "when, and beside which others, tokens are computed: equal to rounding": """
        abort_on_priority_when_disabled chunked_prefill_size default_priority_value
        disable_overlap_schedule disable_priority_preemption disaggregation_bootstrap_port
        disaggregation_decode_allocation_policy disaggregation_decode_enable_offload_kvcache
        disaggregation_decode_enable_radix_cache disaggregation_decode_extra_slots
        disaggregation_decode_host_receive_threshold disaggregation_decode_polling_interval
        disaggregation_decode_retraction_backup disaggregation_enable_kv_checksum
        disaggregation_ib_device disaggregation_mode disaggregation_transfer_backend
        dllm_fdfo enable_dynamic_chunking enable_mixed_chunk enable_pd_role_switch
        enable_pdmux enable_prefill_delayer enable_priority_scheduling
        enable_single_batch_overlap enable_two_batch_overlap load_balance_method
        max_prefill_tokens max_queued_requests max_running_requests max_total_tokens
        min_free_slots_delay num_continuous_decode_steps num_reserved_decode_tokens
        optimistic_prefill_attempts pdmux_config_path pp_async_batch_depth
        pp_max_micro_batch_size prefill_decode_interval prefill_decode_interval_min_bs
        prefill_delayer_forward_passes_buckets prefill_delayer_max_delay_ms
        prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
        prefill_delayer_token_usage_low_watermark prefill_delayer_wait_seconds_buckets
        prefill_max_requests priority_scheduling_preemption_threshold retraction_policy
        schedule_conservativeness schedule_low_priority_values_first schedule_policy
        scheduler_recv_interval sm_group_num tbo_token_distribution_threshold
        """,
        "how much is kept, where, and for how long; the layout is asked of the pools": """
        _radix_eviction_policy_explicitly_set _swa_full_tokens_ratio_explicitly_set
        disable_chunked_prefix_cache disable_hybrid_swa_memory disable_radix_cache
        enable_flexkv enable_hierarchical_cache enable_linker_mla_dedup enable_lmcache
        enable_lora_overlap_loading enable_session_radix_cache
        enable_unified_cache_external_linker flexkv_config_file hicache_host_memory_fraction
        hicache_host_memory_mode hicache_io_backend hicache_mem_layout hicache_ratio
        hicache_size hicache_storage_backend hicache_storage_backend_extra_config
        hicache_storage_prefetch_policy hicache_storage_prefetch_retry_max_attempts
        hicache_storage_prefetch_retry_poll_interval hicache_write_policy
        lmcache_config_file lora_backend lora_drain_wait_threshold lora_eviction_policy
        lora_use_virtual_experts mamba_full_memory_ratio mamba_max_states_per_path
        mamba_radix_cache_strategy mamba_track_interval max_loaded_loras max_lora_chunk_size
        max_lora_rank max_loras_per_batch max_mamba_cache_size mem_fraction_static
        radix_cache_backend radix_eviction_policy radix_eviction_policy_config
        swa_full_tokens_ratio swa_prefix_tails unified_cache_external_linker_backend
        unified_cache_external_linker_config uses_mamba_radix_cache
        """,
        "how work is divided: equal to rounding; a rank's part of the KV is in the namespace": """
        attn_dp_size base_gpu_id boundary_reduction dcp_comm_backend dcp_replicate_q_proj
        device disable_attn_tp_gather dp_size dwdp_size elastic_ep_backend
        elastic_ep_initial_size elastic_ep_scale_timeout enable_attn_tp_input_scattered
        enable_cp_tp_group_sharing enable_dense_mlp_attn_tp enable_dp_attention
        enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_eplb
        enable_layernorm_sp enable_p2p_check enable_shared_experts_attn_tp
        enable_tp_lm_head_all_to_all enable_waterfill ep_dispatch_algorithm ep_join_mode
        ep_join_rank_offset ep_num_redundant_experts ep_size eplb_algorithm
        eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk
        eplb_rebalance_num_iterations gpu_id_step init_expert_location max_ep_size
        mm_enable_dp_encoder moe_dense_tp_size moe_dp_size mooncake_ib_device nnodes
        node_rank shared_experts_tp_size
        """,
        "which kernels compute the same: equal to rounding": """
        attention_backend bf16_gemm_backend cuda_graph_backend_decode
        cuda_graph_backend_prefill cuda_graph_bs_decode cuda_graph_bs_prefill
        cuda_graph_config cuda_graph_max_bs_decode cuda_graph_max_bs_prefill
        cuda_graph_max_seq_len_prefill cuda_graph_prefill_max_context debug_cuda_graph
        decode_attention_backend deepep_config deepep_mode deepep_v2_mode
        disable_aiter_allreduce_fusion_in_decode disable_aiter_allreduce_fusion_in_prefill
        disable_cuda_graph disable_cuda_graph_padding disable_custom_all_reduce
        disable_decode_cuda_graph disable_flashinfer_autotune
        disable_flashinfer_cutlass_moe_fp4_allgather disable_prefill_cuda_graph
        disable_shared_experts_fusion dsa_decode_backend dsa_paged_mqa_logits_backend
        dsa_prefill_backend dsa_topk_backend dsa_triton_union dsv4_attn_backend
        dsv4_prefill_backend enable_aiter_allreduce_fusion enable_amd_monokernel
        enable_cudagraph_gc enable_deterministic_inference enable_dsa_fused_indexer
        enable_flashinfer_allreduce_fusion enable_fused_moe_sum_all_reduce
        enable_fused_qk_norm_rope enable_lean_attention enable_mscclpp enable_nccl_nvls
        enable_nvidia_megakernel enable_profile_cuda_graph enable_symm_mem
        enable_torch_compile enable_torch_compile_debug_mode enable_torch_symm_mem
        enforce_disable_flashinfer_allreduce_fusion enforce_shared_experts_fusion
        flashinfer_allreduce_fusion_backend flashinfer_autotune_skip_ops
        flashinfer_mla_disable_ragged fp4_gemm_runner_backend fp8_gemm_runner_backend
        fuseep_mode linear_attn_backend linear_attn_decode_backend
        linear_attn_prefill_backend linear_attn_verify_backend mamba_backend
        mm_attention_backend moe_a2a_backend moe_runner_backend pre_warm_nccl
        prefill_attention_backend torch_compile_max_bs triton_attention_num_kv_splits
        triton_attention_reduce_in_fp32 triton_attention_split_tile_size
        """,
    }.items()
}
"""Arguments that KV does not depend on, and why."""

_PATHS = _words(
    """
    decrypted_config_file decrypted_draft_config_file dllm_algorithm_config kt_weight_path
    modelopt_checkpoint_restore_path quantization_param_path rl_quant_profile
    speculative_draft_model_path speculative_token_map uno_lora_path
    """
)
"""Arguments that name a place: its content counts, not its name."""

_LONGEST = 64
"""Characters that are shown in a namespace as they are."""


def joined_by(arguments: object | None) -> dict[str, str]:
    """The entries of *arguments* in the namespace of the model's KV."""
    known = NAMED | DRAFT | frozenset().union(*UNRELATED.values())
    given = {name: value for name, value in _given(arguments) if name not in known}
    if new := sorted(given.keys() - JOINED):
        log.warning("not known to hexkv, so KV is shared only where they are the same: %s", new)
    return {name: _text(name, value) for name, value in given.items()}


def joined_by_draft(arguments: object | None) -> dict[str, str]:
    """The entries of *arguments* in that of the draft model's KV."""
    return {name: _text(name, value) for name, value in _given(arguments) if name in DRAFT}


def names_of(kind: type) -> set[str]:
    """The names of all arguments that *kind*, a version's ``ServerArgs``, has."""
    return {name for name, _ in _defaults(kind)}


def _given(arguments: object | None) -> Iterator[tuple[str, object]]:
    """Arguments that are not SGLang's defaults."""
    if arguments is None:
        return
    for name, default in _defaults(type(arguments)) or ((name, None) for name in vars(arguments)):
        value = getattr(arguments, name, None)
        if value not in (None, default):
            yield name, value


def _defaults(kind: type) -> list[tuple[str, object]]:
    """Each argument and its default; it was a dataclass before 0.5.23."""
    if hasattr(kind, "__struct_fields__"):
        fields = import_module("msgspec").structs.fields(kind)
    elif dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
    else:
        return []
    return [(str(field.name), field.default) for field in fields]


def files_of(arguments: object | None) -> Iterator[tuple[str, str, Path | None]]:
    """Each argument that names files, its value, and where they are."""
    for name, value in _given(arguments):
        if name in _PATHS:
            yield name, str(value), _place(str(value))


def _place(value: str) -> Path | None:
    return Path(value) if Path(value).is_file() else folder_of(value)


def _text(name: str, value: object) -> str:
    if name in _PATHS:
        place = FILES.place(name, str(value), _place(str(value)))
        return str(value) if place is None else FILES.digest(place)
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST else sha256(text.encode()).hexdigest()[:32]
