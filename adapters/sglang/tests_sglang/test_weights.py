"""Weights that are replaced in a running server: what was stored before is for other weights."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.utils.torch_memory_saver_adapter import _TorchMemorySaverAdapterReal
from sglang.srt.utils.weight_checker import WeightChecker

from hexkv.adapters.sglang.hicache import HexKVStorage
from hexkv.adapters.sglang.updates import CHANGED, CHANGES
from hexkv.ports import ConfigError
from sglang_pools import backend, config, extra, host_pool, names, slots

UPDATES = [
    ("model_runner.update_model_fields", {"model_path": "the same", "load_format": "auto"}),
    ("scheduler.weight_version", {"weight_version": "2"}),
]


def test_sglangs_context_records_changes_as_it_is_read_here():
    assert callable(runtime_context.get_context().overrides_log)


@pytest.mark.parametrize("update", UPDATES, ids=["from disk", "with a version"])
def test_nothing_is_read_or_stored_after_weights_were_replaced(update, context, tmp_path, caplog):
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    with backend(pool, extra(tmp_path)) as storage:
        assert storage.batch_set_v1(keys, slots(0, 1)) == [True] * 2
        assert storage.batch_exists(keys) == 2
        context.changes.append(("later", {"page_size": 8}))
        assert storage.batch_exists(keys) == 2
        context.changes.append(update)
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, slots(2, 3)) == [False] * 2
        other = names(2, seed=500)
        assert storage.batch_set_v1(other, slots(0, 1)) == [True] * 2
        assert storage._store.find(other) == 0
        assert caplog.text.count("weights were replaced") == 1


def test_after_an_update_the_backend_is_attached_again_only_with_weights_that_have_a_name(
    context, tmp_path
):
    context.changes.append(UPDATES[0])
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    storage = HexKVStorage(config(extra(tmp_path, model={"name": "tiny"})))
    with pytest.raises(ConfigError, match=r"model\.weights"):
        storage.register_mem_pool_host(pool)
    with backend(pool, extra(tmp_path, model={"weights": "two"})) as storage:
        assert storage.batch_set_v1(keys, slots(0, 1)) == [True] * 2
        assert storage.batch_exists(keys) == 2


class Model(torch.nn.Module):
    """As SGLang's models are asked to take weights."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2), requires_grad=False)

    def load_weights(self, named):
        for _, tensor in named:
            self.weight.copy_(tensor)


@pytest.fixture
def updater(monkeypatch):
    """SGLang's own updater, of a small model, in a process that counts anew."""
    monkeypatch.setattr(CHANGED, "seen", 0)
    mode = SimpleNamespace(weight_cache_mode="off")
    monkeypatch.setattr(weight_updater, "get_model", lambda: mode)
    monkeypatch.setattr(weight_updater, "get_parallel", lambda: SimpleNamespace(tp_rank=0))
    model = Model()
    return weight_updater.WeightUpdater(
        tp_rank=0,
        device="cpu",
        gpu_id=0,
        model_config=None,
        custom_weight_loaders={},
        get_model=lambda: model,
        update_model_fields=None,
        recapture_cuda_graph=None,
        get_model_runner=lambda: SimpleNamespace(model=model),
    )


WEIGHTS = [("weight", torch.ones(2))]


def scrambled(one):
    checker = object.__new__(WeightChecker)  # without the ranks that it describes
    checker._get_model = one.get_model
    checker._reset_tensors()


CHANGING = {
    "tensors": lambda one: one.update_weights_from_tensor(WEIGHTS),
    "the network": lambda one: one.load_weights_from_distributed(WEIGHTS),
    "whatever a session writes": lambda one: one.begin_weight_update(),
    "an update that fails halfway": lambda one: one.load_weights_from_distributed([None]),
    "random numbers": scrambled,
}


@pytest.mark.parametrize("change", CHANGING.values(), ids=CHANGING)
def test_weights_that_change_without_a_version_end_reading_and_storing(
    change, updater, context, tmp_path
):
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    with backend(pool, extra(tmp_path)) as storage:
        assert storage.batch_set_v1(keys, slots(0, 1)) == [True] * 2
        assert storage.batch_exists(keys) == 2
        change(updater)
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, slots(2, 3)) == [False] * 2
        other = names(2, seed=500)
        assert storage.batch_set_v1(other, slots(0, 1)) == [True] * 2
        assert storage._store.find(other) == 0
    assert not context.changes[1:], "SGLang itself has recorded nothing"
    with pytest.raises(ConfigError, match=r"model\.weights"):
        HexKVStorage(config(extra(model={"name": "tiny"}))).register_mem_pool_host(pool)


def test_weights_that_gave_their_memory_back_count_as_changed_unless_a_copy_is_kept(
    updater, monkeypatch
):
    inner = SimpleNamespace(pause=lambda **_: None)
    monkeypatch.setattr(_TorchMemorySaverAdapterReal, "__init__", lambda self: None)
    monkeypatch.setattr(
        "sglang.srt.utils.torch_memory_saver_adapter._memory_saver", inner, raising=False
    )
    kept = SimpleNamespace(enable_weights_cpu_backup=True)
    saver = _TorchMemorySaverAdapterReal()
    saver.pause("kv_cache")
    assert CHANGED.seen == 0
    monkeypatch.setattr("hexkv.adapters.sglang.identity.server_arguments", lambda: kept)
    saver.pause("weights")
    assert CHANGED.seen == 0
    kept.enable_weights_cpu_backup = False
    saver.pause("weights")
    assert CHANGED.seen == 1


HARMLESS = {
    "destroy_weights_update_group": "closes connections",
    "init_weights_update_group": "opens connections",
    "end_weight_update": "comes after a beginning, which counts",
    "receive_weights_from_distributed": "into memory of its own, loaded by another call",
    "check_weights": "changes them in WeightChecker only, by random numbers",
    "flush_cache_after_weight_update": "KV, not weights",
    "get_weights_by_name": "reads",
    "record_weight_version_after_update": "a name",
    "release_memory_occupation": "weights go by the memory saver's pause, which counts",
    "resume_memory_occupation": "comes after a release",
    "save_remote_model": "reads",
    "save_sharded_model": "reads",
    "update_weights_from_distributed": "goes on to WeightUpdater",
    "update_weights_from_disk": "goes on to WeightUpdater",
    "update_weights_from_ipc": "goes on to WeightUpdater",
    "update_weights_from_tensor": "goes on to WeightUpdater",
}


def test_every_way_of_sglangs_to_change_weights_is_counted_or_is_known_to_be_none():
    counted = set().union(*CHANGES.values())
    for owner, known in [
        (weight_updater.WeightUpdater, counted),
        (SchedulerWeightUpdaterManager, {"begin_weight_update"}),
    ]:
        ways = {
            name
            for name, value in vars(owner).items()
            if callable(value) and not name.startswith("_")
        }
        decided = known | HARMLESS.keys() | {"get_model", "get_model_runner"}
        assert ways <= decided, f"decide about {sorted(ways - decided)} of {owner.__name__}"
    here = counted & vars(weight_updater.WeightUpdater).keys()
    assert {f"WeightUpdater.{name}" for name in here} <= CHANGED.watched
