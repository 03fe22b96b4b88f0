"""What the connector promises vLLM, on vLLM's own classes."""

import copy
import logging
import sys

import pytest
import torch
from vllm.config import KVTransferConfig, PoolerConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

from engines.vllm.vllm_toy import BLOCK, HEADS, NAMES, TRANSFER, WIDTH, Toy, alone, configuration
from hexkv.adapters.vllm import assembly
from hexkv.adapters.vllm.configuration.inspection import describe
from hexkv.adapters.vllm.connector import HexKVConnector, KVConnectorRole, PlannedStep, WorkerReport
from hexkv.adapters.vllm.messages import Step
from hexkv.adapters.vllm.metrics.metrics import Tally
from hexkv.adapters.vllm.metrics.stats import HexKVStats
from hexkv.adapters.vllm.plugin import register
from hexkv.ports import ConfigError, LayoutMismatch

PROMPT = list(range(100))


def spec(kind=FullAttentionSpec, **said):
    return kind(block_size=BLOCK, num_kv_heads=HEADS, head_size=WIDTH, dtype=torch.float32, **said)


def kv(*specs):
    groups = [KVCacheGroupSpec([f"{i}.{n}" for n in NAMES], s) for i, s in enumerate(specs)]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)


@pytest.fixture
def config(model):
    config = copy.deepcopy(configuration(str(model), 256, True))
    config.kv_transfer_config = KVTransferConfig(**TRANSFER)
    return config


@pytest.mark.parametrize("role", list(KVConnectorRole))
def test_hybrid_models_are_refused_in_one_line(config, role):
    with pytest.raises(LayoutMismatch, match="hybrid models: this one has 2 groups"):
        HexKVConnector(config, role, kv(spec(), spec()))
    with pytest.raises(LayoutMismatch, match="a layer of SlidingWindowSpec"):
        HexKVConnector(config, role, kv(spec(SlidingWindowSpec, sliding_window=32)))


def test_where_vllm_uses_no_prefix_again_nothing_starts(config):
    """Answers made of all tokens: with some of them loaded, vLLM's second request ended it."""
    config.model_config.pooler_config = PoolerConfig(seq_pooling_type="MEAN")
    assert not config.model_config.is_prefix_caching_supported
    with pytest.raises(LayoutMismatch, match="is_prefix_caching_supported"):
        HexKVConnector.get_required_kvcache_layout(config)
    config.model_config.pooler_config = PoolerConfig(seq_pooling_type="LAST")
    HexKVConnector.get_required_kvcache_layout(config)


def test_a_bad_configuration_stops_vllm_with_its_name(config):
    config.kv_transfer_config.kv_connector_extra_config = {"tires": []}
    with pytest.raises(ConfigError, match=r"tires.*tiers"):
        HexKVConnector(config, KVConnectorRole.WORKER, kv(spec()))


@pytest.mark.parametrize("graphs", [True, False])
def test_it_is_refused_before_any_weights_are_loaded(model, monkeypatch, graphs):
    """vLLM's own configuration of an engine, on platforms with CUDA graphs and without."""
    platform = type(current_platform)
    monkeypatch.setattr(platform, "support_static_graph_mode", classmethod(lambda cls: graphs))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which it changes
    extra = {"tiers": [{"store": "memory"}, {"store": "dsik"}]}
    bad = TRANSFER | {"kv_connector_extra_config": extra}
    mistake = r"tiers\[1\]\.store \(from kv_connector_extra_config\): .*dsik.*disk"
    with pytest.raises(ConfigError, match=mistake):
        EngineArgs(model=str(model), dtype="float32", kv_transfer_config=bad).create_engine_config()


def test_without_the_plugin_it_is_refused_before_memory_is_profiled(config):
    config.kv_transfer_config.kv_connector_extra_config = {"tires": []}
    with pytest.raises(ConfigError, match=r"tires.*tiers"):
        HexKVConnector.get_required_kvcache_layout(config)


def test_the_connector_is_known_by_its_name_alone(config):
    register()
    register()
    config.kv_transfer_config.kv_connector_module_path = None
    assert KVConnectorFactory.get_connector_class(config.kv_transfer_config) is HexKVConnector


@pytest.mark.parametrize("loading", ["sync", "async", "layerwise"])
@pytest.mark.parametrize("vllm", ["goes back", "plans ahead", "runs models its second way"])
def test_where_vllm_cannot_set_back_a_step_nothing_is_loaded_within_one(
    config, loading, vllm, monkeypatch
):
    config.kv_transfer_config.kv_connector_extra_config = {"loading": loading}
    config.scheduler_config.async_scheduling = vllm == "plans ahead"
    second = vllm == "runs models its second way"
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(second)))
    read = assembly.read(config, describe(config, kv(spec())))
    assert read.connector.loading == (loading if vllm == "goes back" else "async")


def test_what_ranks_say_is_summed_up():
    both = WorkerReport({1: 1, 2: 1}, []).aggregate(WorkerReport({2: 1, 3: 1}, []))
    assert both.steps == {1: 1, 2: 2, 3: 1}


@pytest.mark.parametrize("loading", ["sync", "async", "layerwise"])
def test_whatever_breaks_inside_vllm_goes_on_and_the_tokens_are_right(start, loading, monkeypatch):
    """Every call of the engine raises something that nobody expects, one after the other."""
    toy = start(connector={"loading": loading})
    toy.add("cold", PROMPT)
    toy.run()

    def broken(*args, **named):
        raise ZeroDivisionError("on purpose")

    for name in ("lookup", "prefetch", "retrieve", "retrieve_layers", "store", "unpin", "cancel"):
        toy.forget()
        with monkeypatch.context() as patched:
            patched.setattr(toy.engine, name, broken)
            toy.add(f"without {name}", PROMPT)
            toy.run()
            assert toy.answers()[f"without {name}"] == alone(PROMPT, 4)
    toy.forget()
    toy.add("whole", PROMPT)
    toy.run()
    assert toy.answers()["whole"] == alone(PROMPT, 4)
    assert toy.cached["whole"] == 96


@pytest.mark.parametrize("loading", ["sync", "async", "layerwise"])
@pytest.mark.parametrize("half", ["scheduler", "worker"])
def test_halves_that_break_altogether_are_left_out(start, half, loading, monkeypatch):
    toy = start(connector={"loading": loading})
    toy.add("cold", PROMPT)
    toy.run()
    found = toy.scheduler.connector._scheduler if half == "scheduler" else toy.worker._worker.half

    def broken(*args, **named):
        raise ZeroDivisionError("on purpose")

    names = [n for n in dir(type(found)) if not n.startswith("_") and callable(getattr(found, n))]
    for name in names:
        if name in ("close", "failed", "lost"):
            continue
        toy.forget()
        with monkeypatch.context() as patched:
            patched.setattr(found, name, broken)
            toy.add(f"without {name}", PROMPT)
            toy.run()
            assert toy.answers()[f"without {name}"] == alone(PROMPT, 4), name


def test_the_start_says_what_there_is_and_what_is_degraded(start, monkeypatch, caplog):
    monkeypatch.setattr(Toy, "transfer", TRANSFER | {"kv_load_failure_policy": "fail"})
    with caplog.at_level(logging.INFO):
        logging.getLogger("vllm").addHandler(caplog.handler)
        try:
            start()
        finally:
            logging.getLogger("vllm").removeHandler(caplog.handler)
    said = caplog.text
    assert "rank 0 of 1: memory" in said
    assert "whole blocks" in said
    assert f"chunks of 32 tokens, the last to a block of {BLOCK}, sync loading" in said
    assert "kv_load_failure_policy is 'fail'" in said


def test_vllms_log_line_has_the_numbers(config):
    line, lines = KVConnectorLogging(config.kv_transfer_config), []
    for loaded in (32, 64):
        tally = Tally()
        tally.stored(96, 0, 1 << 20, 0.5)
        tally.loaded(loaded, 1 << 20, 0.25)
        line.observe(HexKVStats(tally.take()).data)
    line.log(lambda text, *values: lines.append(text % values))
    (said,) = lines
    assert said.startswith("KV Transfer metrics: ")
    for part in ("stored_tokens=192", "loaded_tokens=96", "load_GB_per_second=0.0"):
        assert part in said


def test_an_empty_step_costs_nothing_and_changes_nothing(start):
    toy = start()
    begun = toy.worker.get_kv_connector_stats().data  # how the tiers are, and zeros
    toy.worker.bind_connector_metadata(PlannedStep(Step()))
    toy.worker.start_load_kv(None, anything="vLLM may add")
    toy.worker.wait_for_save()
    assert toy.worker.get_finished(set()) == (None, None)
    assert toy.worker.get_block_ids_with_load_errors() == set()
    assert toy.worker.build_connector_worker_meta() is None
    again = toy.worker.get_kv_connector_stats()
    assert again is None or again.data.items() <= begun.items()
    toy.worker.clear_connector_metadata()
    assert not toy.worker.requires_kv_delivery
