"""Weights that are replaced in a running server: what was stored before is for other weights."""

import warnings
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from safetensors.torch import load_file, save_file
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.utils.torch_memory_saver_adapter import _TorchMemorySaverAdapterReal
from sglang.srt.utils.weight_checker import WeightChecker

from engines.sglang.sglang_pools import backend, config, extra, host_pool, names, slots
from hexkv.adapters.sglang import hooks
from hexkv.adapters.sglang.hicache import HexKVStorage
from hexkv.adapters.sglang.identity.updates import CHANGED, CHANGES
from hexkv.ports import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what SGLang has to say about a machine without a GPU
    from sglang.srt.managers.scheduler import Scheduler


@pytest.fixture(autouse=True)
def hooked():
    """SGLang's classes as they are once a model was loaded."""
    hooks.install()


def test_what_sees_a_model_loaded_is_there_before_it_is():
    """It is imported before SGLang calls its plugins; much of what changes weights is not."""
    assert hasattr(Scheduler.init_model_worker, "__wrapped__")


def test_nothing_is_read_or_stored_once_weights_change(changed, tmp_path, caplog):
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    with backend(pool, extra(tmp_path)) as storage:
        assert storage.batch_set_v1(keys, slots(0, 1)) == [True] * 2
        assert storage.batch_exists(keys) == 2
        assert not storage._engine.health().why
        changed.count()
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, slots(2, 3)) == [False] * 2
        assert storage.batch_get(keys, [pool.get_dummy_flat_data_page()] * 2) == [None] * 2
        other = names(2, seed=500)
        assert storage.batch_set_v1(other, slots(0, 1)) == [True] * 2
        assert storage._store.find(other) == 0
        health = storage._engine.health()
        assert (health.frozen, health.why) == (True, "weights were replaced")
        changed.count()
    changed.count()
    assert caplog.text.count("weights were replaced") == 1


def test_what_is_read_while_weights_change_is_no_hit(changed, tmp_path, monkeypatch):
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    flat = [pool.get_dummy_flat_data_page() for _ in keys]
    for read in (
        lambda one: one.batch_get_v1(keys, slots(2, 3)) == [False] * 2,
        lambda one: one.batch_get(keys, flat) == [None] * 2,
    ):
        changed.vouched.clear()
        with backend(pool, extra(tmp_path)) as storage:
            storage.batch_set_v1(keys, slots(0, 1))
            load = storage._store.load

            def late(*given, load=load):
                found = load(*given)
                changed.count()
                return found

            monkeypatch.setattr(storage._store, "load", late)
            assert read(storage)
        changed.flushed = changed.seen


def test_what_the_log_advises_can_be_done(changed, tmp_path, caplog):
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    with backend(pool, extra(tmp_path)) as storage:
        changed.count()
    for advised in ("/flush_cache", "detach", "new model.weights", "restart the server"):
        assert advised in caplog.text
    assert Scheduler.flush_cache(MagicMock())
    for model in ({"name": "tiny"}, {"weights": "one"}):
        storage = HexKVStorage(config(extra(tmp_path, model=model)))
        with pytest.raises(ConfigError, match=r"model\.weights"):
            storage.register_mem_pool_host(pool)
    with backend(pool, extra(tmp_path, model={"weights": "two"})) as storage:
        assert storage.batch_set_v1(keys, slots(0, 1)) == [True] * 2
        assert storage.batch_exists(keys) == 2


def test_a_flush_that_sglang_refuses_empties_nothing(changed):
    changed.count()
    assert not Scheduler.flush_cache(MagicMock(is_fully_idle=lambda **_: False))
    assert changed.flushed == 0
    assert Scheduler.flush_cache(MagicMock())
    assert changed.flushed == 1


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
    """SGLang's own updater, of a small model."""
    mode = SimpleNamespace(weight_cache_mode="off")
    monkeypatch.setattr(weight_updater, "get_model", lambda: mode)
    monkeypatch.setattr(weight_updater, "get_parallel", lambda: SimpleNamespace(tp_rank=0))
    model = Model()
    return weight_updater.WeightUpdater(
        tp_rank=0,
        device="cpu",
        gpu_id=0,
        model_config=SimpleNamespace(model_path="", revision=None, dtype=torch.float32),
        custom_weight_loaders={},
        get_model=lambda: model,
        update_model_fields=lambda *_, **__: None,
        recapture_cuda_graph=None,
        get_model_runner=lambda: SimpleNamespace(model=model),
    )


class Loader(weight_updater.DefaultModelLoader):
    """SGLang's own, without its configuration: tensors come from one file."""

    def __init__(self):
        pass

    def _get_weights_iterator(self, source):
        return iter(load_file(f"{source.model_or_path}/model.safetensors").items())


@pytest.fixture
def loader(monkeypatch):
    monkeypatch.setattr(weight_updater, "get_model_loader", lambda *_: Loader())
    monkeypatch.setattr(weight_updater, "get_pp_stage_load_group", lambda: None)


def from_disk(one, folder, tensors):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return one.update_weights_from_disk(str(folder), "auto")[0]


WEIGHTS = [("weight", torch.ones(2))]


def scrambled(one):
    checker = object.__new__(WeightChecker)  # without the ranks that it describes
    checker._get_model = one.get_model
    checker._reset_tensors()


CHANGING = {
    "tensors": lambda one: one.update_weights_from_tensor(WEIGHTS),
    "the network": lambda one: one.load_weights_from_distributed(WEIGHTS),
    "an update that fails halfway": lambda one: one.load_weights_from_distributed([None]),
    "random numbers": scrambled,
}


@pytest.mark.parametrize("change", CHANGING.values(), ids=CHANGING)
def test_each_way_to_change_weights_is_counted(change, updater, changed):
    change(updater)
    assert changed.seen == 1


@pytest.mark.usefixtures("loader")
def test_an_update_from_disk_changes_weights_once_it_writes(updater, changed, tmp_path):
    assert not updater.update_weights_from_disk(str(tmp_path / "nothing"), "auto")[0]
    assert changed.seen == 0
    assert from_disk(updater, tmp_path, dict(WEIGHTS))
    assert changed.seen == 1
    assert torch.equal(updater.get_model().weight, WEIGHTS[0][1])


@pytest.mark.usefixtures("loader")
def test_an_update_from_disk_that_fails_halfway_has_changed_weights(updater, changed, tmp_path):
    wrong = torch.ones(3)
    with pytest.raises(RuntimeError):  # SGLang reads the same folder again to go back
        from_disk(updater, tmp_path, {"weight": wrong})
    assert changed.seen >= 1


def test_from_its_begin_to_its_end_an_update_is_unsettled_and_its_end_changes_weights(
    updater, changed
):
    updater.begin_weight_update()
    assert changed.unsettled
    begun = changed.seen
    updater.end_weight_update(run_post_load=True)
    assert not changed.unsettled
    assert changed.seen > begun


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
    monkeypatch.setattr("hexkv.adapters.sglang.identity.identity.server_arguments", lambda: kept)
    saver.pause("weights")
    assert CHANGED.seen == 0
    kept.enable_weights_cpu_backup = False
    saver.pause("weights")
    assert CHANGED.seen == 1


HARMLESS = {
    "destroy_weights_update_group": "closes connections",
    "init_weights_update_group": "opens connections",
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


UNTIL_WRITTEN = "update_weights_from_disk"
"""Counted where it begins to write: one that fails before changes nothing."""


def test_every_way_of_sglangs_to_change_weights_is_counted_or_is_known_to_be_none():
    counted = set().union(*CHANGES.values())
    for owner, known in [
        (weight_updater.WeightUpdater, counted),
        (SchedulerWeightUpdaterManager, {"begin_weight_update", "end_weight_update"}),
    ]:
        ways = {
            name
            for name, value in vars(owner).items()
            if callable(value) and not name.startswith("_")
        }
        decided = known | HARMLESS.keys() | {"get_model", "get_model_runner"}
        assert ways <= decided, f"decide about {sorted(ways - decided)} of {owner.__name__}"
    here = counted & vars(weight_updater.WeightUpdater).keys() - {UNTIL_WRITTEN}
    assert "DefaultModelLoader.restore_weights_before_loading" in CHANGED.watched
    assert {f"WeightUpdater.{name}" for name in here} <= CHANGED.watched
