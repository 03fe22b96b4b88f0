"""Weights that are replaced in a running server: what was stored before is for other weights."""

import pytest
from sglang.srt import runtime_context

from hexkv.adapters.sglang.hicache import HexKVStorage
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
