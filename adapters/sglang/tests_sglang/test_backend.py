"""The backend as SGLang treats it: three threads, several pools, and the end of it."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from engines.sglang.sglang_pools import (
    PAGE,
    backend,
    config,
    extra,
    host_pool,
    names,
    page_of,
    same,
    slots,
)
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.sglang.hicache import HexKVStorage
from hexkv.adapters.sglang.identity.identity import Rank
from hexkv.ports import ConfigError, StoreError
from processes import until

PATIENCE = 60.0


def test_three_threads_at_once_get_their_own_pages():
    pool = host_pool("mha", "page_first", seed=1)
    expected = {number: page_of(pool, number).clone() for number in range(8)}
    with backend(pool, extra()) as storage, ThreadPoolExecutor(3) as threads:

        def writes(seed):
            return all(storage.batch_set_v1(names(4, seed), slots(0, 1, 2, 3)))

        def asks(seed):
            return storage.batch_exists(names(4, seed)) <= 4

        def reads(seed):
            keys = names(4, seed)
            flat = [pool.get_dummy_flat_data_page() for _ in keys]
            got = storage.batch_get(keys, flat)
            wanted = [pool.get_data_page(number * PAGE) for number in range(4)]
            return all(
                page is None or same(page, want) for page, want in zip(got, wanted, strict=True)
            )

        tasks = [
            threads.submit(task, 100 * seed) for seed in range(20) for task in (writes, asks, reads)
        ]
        assert all(task.result(60) for task in tasks)
        assert storage.batch_exists(names(4, 1900)) == 4
    assert all(same(page_of(pool, number), page) for number, page in expected.items())


def test_after_close_everything_is_a_miss_and_nothing_raises():
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    with backend(pool, extra()) as storage:
        storage.batch_set_v1(keys, slots(0, 1))
        storage.close()
        storage.close()
        assert storage.batch_exists(keys) == 0
        assert storage.batch_get_v1(keys, slots(2, 3)) == [False, False]
        assert storage.batch_get(keys, [pool.get_dummy_flat_data_page()] * 2) == [None, None]
        assert storage.batch_exists_v2(keys, []).kv_hit_pages == 0
        assert storage.get(keys[0]) is None
        assert storage.get_stats() is None
        storage.clear()


def test_a_backend_is_attached_again_and_finds_its_disk(tmp_path):
    pool, keys = host_pool("mha", "layer_first", seed=1), names(2)
    for found in (0, 2):
        with backend(pool, extra(tmp_path)) as storage:
            assert storage.batch_exists(keys) == found
            assert all(storage.batch_set_v1(keys, slots(0, 1)))


class Stalled:
    """A disk that begins to read, and goes on when a test says so."""

    def __init__(self, monkeypatch):
        self.begun, self.go = Event(), Event()
        plain = DiskStore.read

        def later(*given):
            self.begun.set()
            assert self.go.wait(PATIENCE)
            return plain(*given)

        monkeypatch.setattr(DiskStore, "read", later)


def controller(storage, thread):
    """As much of SGLang's as stops a thread, for which it waits ten seconds."""
    return SimpleNamespace(
        storage_backend=storage, storage_stop_event=Event(), prefetch_io_aux_thread=thread
    )


@pytest.mark.parametrize("order", ["page_first", "layer_first"])
def test_sglang_waits_for_no_store_when_it_stops_its_threads_and_a_late_page_moves_nothing(
    order, tmp_path, monkeypatch
):
    keys, got = names(2), []
    with backend(host_pool("mha", order, seed=1), extra(tmp_path)) as storage:
        assert all(storage.batch_set_v1(keys, slots(0, 1)))
    disk, pool = Stalled(monkeypatch), host_pool("mha", order)
    with backend(pool, extra(tmp_path)) as storage:
        reader = Thread(target=lambda: got.append(storage.batch_get_v1(keys, slots(2, 3))))
        reader.start()
        assert disk.begun.wait(PATIENCE)
        HiCacheController._stop_storage_threads(controller(storage, reader))
        reader.join(PATIENCE)
        assert got == [[False] * 2]
        disk.go.set()
        until(lambda: not any("call" in owner for owner in storage._engine.health().leases))
        assert not pool.kv_buffer.any()
        assert storage.batch_exists(keys) == 2
        assert storage.batch_get_v1(keys, slots(2, 3)) == [True] * 2
        assert pool.kv_buffer.any()


def test_a_page_that_is_written_while_its_slot_becomes_anothers_is_what_it_was(stalled, tmp_path):
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    was = page_of(pool, 0).clone()
    with backend(pool, extra(tmp_path)) as storage:
        assert storage.batch_set_v1(keys, slots(0, 1)) == [True] * 2
        assert stalled.begun.wait(PATIENCE)
        pool.kv_buffer.zero_()
        stalled.go.set()
        until(lambda: storage.batch_exists(keys) == 2)
        assert storage.batch_get_v1(keys[:1], slots(3)) == [True]
        assert same(page_of(pool, 3), was)


def test_clearing_forgets_every_page():
    pool, keys = host_pool("mha", "page_first", seed=1), names(3)
    with backend(pool, extra()) as storage:
        storage.batch_set_v1(keys, slots(0, 1, 2))
        storage.clear()
        assert storage.batch_exists(keys) == 0


def test_statistics_are_sglangs_own_kind():
    pool, keys = host_pool("mha", "page_first", seed=1), names(3)
    with backend(pool, extra()) as storage:
        storage.batch_set_v1(keys, slots(0, 1, 2))
        storage.batch_get_v1(keys, slots(3, 4, 5))
        said = storage.get_stats()
        assert (said.prefetch_pgs, said.backup_pgs) == ([3], [3])
        assert said.prefetch_bandwidth[0] > 0
        assert said.backup_bandwidth[0] > 0


@pytest.mark.parametrize(("read", "write"), [(True, False), (False, True)])
def test_reading_and_writing_are_switched_off_apart(tmp_path, read, write):
    pool, keys = host_pool("mha", "page_first", seed=1), names(1)
    with backend(pool, extra(tmp_path, read=read, write=write)) as storage:
        assert storage.batch_set_v1(keys, slots(0)) == [True]
        assert storage.batch_exists(keys) == 0
    with backend(pool, extra(tmp_path)) as storage:
        assert storage.batch_exists(keys) == int(write)


def test_calls_that_mean_nothing_are_misses():
    pool, keys = host_pool("mha", "page_first", seed=1), names(2)
    with backend(pool, extra()) as storage:
        assert storage.batch_set_v1(keys, slots(0)) == [False, False]
        assert storage.batch_get_v1(keys, torch.tensor([], dtype=torch.int64)) == [False, False]
        assert not storage.batch_set(keys, [torch.zeros(3)] * 2)
        assert not storage.set(keys[0])
        assert storage.batch_get(keys, [torch.zeros(3)] * 2) == [None, None]
        assert storage.batch_exists([]) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model_name": "tiny"}, {"model_name": "other"}),
        ({"tp_rank": 0, "tp_size": 2}, {"tp_rank": 1, "tp_size": 2}),
        ({"tp_size": 1}, {"tp_size": 2}),
        ({"pp_rank": 0, "pp_size": 2}, {"pp_rank": 1, "pp_size": 2}),
        ({"attn_cp_rank": 0, "attn_cp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2}),
    ],
)
def test_models_and_ranks_do_not_find_each_others_pages(one, other, tmp_path):
    pool, keys = host_pool("mha", "page_first", seed=1), names(1)
    with backend(pool, extra(tmp_path), **one) as storage:
        storage.batch_set_v1(keys, slots(0))
    for said, found in ((one, 1), (other, 0)):
        with backend(pool, extra(tmp_path), **said) as storage:
            assert storage.batch_exists(keys) == found


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"weights": "two"}},
        {"model": {"weights": "one", "revision": "two"}},
        {"model": {"weights": "one", "salt": "secret"}},
    ],
)
def test_weights_revisions_and_tenants_do_not_find_each_others_pages(settings, tmp_path):
    pool, keys = host_pool("mha", "page_first", seed=1), names(1)
    with backend(pool, extra(tmp_path)) as storage:
        storage.batch_set_v1(keys, slots(0))
    with backend(pool, extra(tmp_path, **settings)) as storage:
        assert storage.batch_exists(keys) == 0


def test_dtypes_do_not_find_each_others_pages(tmp_path):
    half, other = host_pool("mha", "page_first", seed=1), torch.bfloat16
    with backend(half, extra(tmp_path)) as storage:
        storage.batch_set_v1(names(1), slots(0))
    with backend(host_pool("mha", "page_first", dtype=other), extra(tmp_path)) as storage:
        assert storage.batch_exists(names(1)) == 0


def test_latent_pages_are_the_same_for_every_rank_of_a_stage(tmp_path):
    pool, keys = host_pool("mla", "page_first", seed=1), names(1)
    ranks = {"tp_size": 2, "is_mla_model": True}
    with backend(pool, extra(tmp_path), tp_rank=0, **ranks) as storage:
        storage.batch_set_v1(keys, slots(0))
    with backend(pool, extra(tmp_path), tp_rank=1, **ranks) as storage:
        assert storage.batch_exists(keys) == 1


def test_a_wrong_setting_or_an_unusable_disk_stops_the_start(tmp_path):
    pool = host_pool("mha", "page_first")
    with pytest.raises(ConfigError, match="nmaespace"), backend(pool, extra(nmaespace="own")):
        pass
    with pytest.raises(ConfigError, match="size"), backend(pool, extra(chunk={"size": 256})):
        pass
    file = tmp_path / "file"
    file.touch()
    with pytest.raises((ConfigError, StoreError)), backend(pool, extra(file)):
        pass


def test_what_older_versions_do_not_say_has_a_meaning():
    class Bare:
        tp_rank, tp_size = 1, 2
        is_mla_model = False

    assert Rank.of(Bare()) == Rank(1, 2)
    storage = HexKVStorage(config({}))
    assert storage.batch_exists(names(1)) == 0
    with pytest.raises(ConfigError, match="decode context"):
        Rank.of(type("Divided", (), {"dcp_size": 2})())


class Side:
    """A pool of states: one slot each, of bytes that only it understands."""

    page_size = 1
    layout = "page_first"
    dtype = torch.uint8

    def __init__(self, size, seed=None):
        made = torch.Generator().manual_seed(seed or 0)
        shape = (8, size)
        self.slots = torch.randint(0, 256, shape, generator=made, dtype=torch.uint8)
        if seed is None:
            self.slots.zero_()

    def get_data_page(self, index, flat=True):
        return self.slots[index]

    def get_dummy_flat_data_page(self):
        return torch.zeros_like(self.slots[0])

    def set_from_flat_data_page(self, index, data_page):
        self.slots[index] = data_page


def transfer(name, keys, indices, policy=PoolHitPolicy.ALL_PAGES):
    return PoolTransfer(name=name, keys=keys, host_indices=torch.tensor(indices), hit_policy=policy)


@pytest.mark.parametrize("size", [7, 500, 5000])
def test_pages_of_another_pool_come_back_whatever_their_size(size, tmp_path):
    keys, pool = names(3), host_pool("mha", "page_first", seed=1)
    source, target = Side(size, seed=2), Side(size)
    kv = transfer(PoolName.KV, keys, slots(0, 1, 2).tolist())
    with backend(pool, extra(tmp_path)) as storage:
        storage.register_mem_host_pool_v2(source, PoolName.MAMBA)
        states = transfer(PoolName.MAMBA, keys, [4, 0, 6])
        assert storage.batch_set_v2([kv, states]) == {
            PoolName.KV: [True] * 3,
            PoolName.MAMBA: [True] * 3,
        }
    with backend(pool, extra(tmp_path)) as storage:
        storage.register_mem_host_pool_v2(target, PoolName.MAMBA)
        states = transfer(PoolName.MAMBA, keys, [1, 2, 3])
        assert storage.batch_get_v2([states]) == {PoolName.MAMBA: [True] * 3}
    assert torch.equal(target.slots[[1, 2, 3]], source.slots[[4, 0, 6]])
    assert not target.slots[[0, 4, 5, 6, 7]].any()


def test_a_prefix_ends_where_every_pool_has_what_it_needs():
    keys, pool = names(6), host_pool("mha", "page_first", seed=1)
    with backend(pool, extra()) as storage:
        for name in (PoolName.MAMBA, PoolName.INDEXER):
            storage.register_mem_host_pool_v2(Side(64, seed=3), name)
        storage.batch_set_v1(keys, slots(0, 1, 2, 3, 4, 5))
        storage.batch_set_v2([transfer(PoolName.INDEXER, keys[:5], [0, 1, 2, 3, 4])])
        storage.batch_set_v2([transfer(PoolName.MAMBA, [keys[1], keys[3], keys[5]], [0, 1, 2])])

        index = PoolTransfer(name=PoolName.INDEXER, keys=keys)
        state = PoolTransfer(
            name=PoolName.MAMBA, keys=keys[:1], hit_policy=PoolHitPolicy.TRAILING_PAGES
        )
        assert storage.batch_exists_v2(keys).kv_hit_pages == 6
        assert storage.batch_exists_v2(keys, [index]).kv_hit_pages == 5
        both = storage.batch_exists_v2(keys, [index, state])
        assert both.kv_hit_pages == 4
        assert both.restorable_prefix_pages == [2, 4]
        assert both.extra_pool_hit_pages == {
            PoolName.KV: 6,
            PoolName.INDEXER: 5,
            PoolName.MAMBA: 6,
        }
        unknown = PoolTransfer(name=PoolName.SWA, keys=keys)
        assert storage.batch_exists_v2(keys, [unknown]).kv_hit_pages == 0
        assert storage.batch_get_v2([transfer(PoolName.SWA, keys[:1], [0])]) == {
            PoolName.SWA: [False]
        }
