"""The linker over SGLang's device pools: what it accepts is whole, and comes layer by layer."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from devices.recorded_driver import Recording
from engines.sglang.sglang_linkers import (
    FROM,
    TO,
    buffers,
    filled,
    kv,
    linker,
    moved,
    offloaded,
)
from engines.sglang.sglang_pools import (
    LAYERS,
    PAGE,
    extra,
    host_pool,
    names,
    page_of,
    slots,
)
from hexkv.adapters.sglang.hicache import HexKVStorage
from hexkv.adapters.sglang.layer_events import LayerEvents
from hexkv.kernels.gpu import fused
from hexkv.kernels.gpu.staging import DeviceStaging
from hexkv.kernels.paged import PagedKV
from hexkv.ports import ConfigError
from processes import until


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_pages_go_from_one_device_to_another_layer_by_layer(kind, tmp_path):
    source, target, keys = filled(kind, seed=1), filled(kind), names(3)
    with linker(source, tmp_path) as one:
        assert one.lookup("a", kv(keys)) == []
        assert offloaded(one, keys, FROM)
        assert one.lookup("a", kv(keys)) == [1, 2, 3]
    with linker(target, tmp_path) as one:
        assert one.lookup("b", kv([*keys, *names(1, 500)])) == [1, 2, 3]
        assert one.load("b", kv(keys, TO))
        assert not any(buffer.any() for buffer in buffers(target))
        index = one.start_layer_wise_loading()
        one.layer_done_counter.set_consumer(index)
        for layer in range(LAYERS):
            one.layer_done_counter.wait_until(layer)
        assert one.finish_layer_wise_loading(index)
        assert one.start_layer_wise_loading() == -1
    assert moved(source, target)


@pytest.mark.parametrize("when", ["before the lookup", "after the lookup"])
def test_a_damaged_page_is_refused_before_anything_was_promised(when, tmp_path):
    pool, keys = filled("mha", seed=1), names(3)
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
    [file] = tmp_path.glob(f"??/*{keys[1]}*")
    with linker(pool, tmp_path) as one:
        until(lambda: not any(tier.indexing for tier in one._engine.health().tiers))
        if when == "before the lookup":
            file.write_bytes(bytes(file.stat().st_size))
            one.lookup("r", kv(keys))
        else:
            assert one.lookup("r", kv(keys)) == [1, 2, 3]
            one.lookup("r", kv(names(1, 900)))
            file.unlink()
            file.write_bytes(b"short")
        accepted = one.load("r", kv(keys, TO))
        assert accepted == ("r" in one._queued)
        if when == "before the lookup":
            assert not accepted
            assert one.lookup("again", kv(keys)) == [1]
        assert one.cancel_queued_load("r") == accepted


def test_a_hit_ends_where_hold_bytes_does(tmp_path, caplog):
    pool, keys = filled("mha", seed=1), names(3)
    page = sum(buffer[:PAGE].nbytes for buffer in buffers(pool))
    with linker(pool, tmp_path, hold_bytes=100) as one:
        assert offloaded(one, keys, FROM)
        assert one.lookup("r", kv(keys)) == []
        assert not one.load("r", kv(keys, TO))
    with linker(pool, tmp_path, hold_bytes=5 * page) as one:
        until(lambda: one.lookup("a", kv(keys)) == [1, 2, 3])
        assert one.load("a", kv(keys, TO))
        caplog.clear()
        for _ in range(2):
            assert one.lookup("b", kv(keys)) == [1, 2]
        assert caplog.text.count("pool.bytes") == 1
        assert one.load("b", kv(keys[:2], FROM[:2]))
        assert one.lookup("r", kv(keys)) == []
        assert one.finish_layer_wise_loading(one.start_layer_wise_loading())
        assert one.lookup("r", kv(keys)) == [1, 2, 3]


def held(one):
    """Pages that each request holds in the pool."""
    return {owner: n for owner, n in one._engine.health().leases.items() if owner in "abr"}


def test_what_is_queued_is_held_in_the_pool_until_it_is_cancelled_or_copied(tmp_path):
    pool, keys = filled("mha", seed=1), names(3)
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
        for rid in "ab":
            assert one.lookup(rid, kv(keys)) == [1, 2, 3]
            assert one.load(rid, kv(keys, TO))
        assert held(one) == {"a": 3, "b": 3}
        assert not one._engine.health().pins
        assert one.load("a", kv(keys[:1], TO[:1])), "again: in place of the load before"
        assert held(one) == {"a": 1, "b": 3}
        assert one.cancel_queued_load("a")
        assert held(one) == {"b": 3}
        index = one.start_layer_wise_loading()
        assert one.finish_layer_wise_loading(index)
        assert held(one) == {}
        assert one.load("r", kv(keys, TO))
        one.reset()
        assert held(one) == {}


def test_all_loads_together_hold_no_more_than_hold_bytes(tmp_path):
    pool, keys = filled("mha", seed=1), names(3)
    page = sum(buffer[:PAGE].nbytes for buffer in buffers(pool))
    with linker(pool, tmp_path, hold_bytes=5 * page) as one:
        assert offloaded(one, keys, FROM)
        assert one.load("a", kv(keys, TO))
        assert not one.load("b", kv(keys, FROM))
        assert one.load("b", kv(keys[:2], FROM[:2]))
        assert one.cancel_queued_load("a")
        assert one.finish_layer_wise_loading(one.start_layer_wise_loading())
        assert one._room == 5 * page
        assert one.load("a", kv(keys, TO))


def test_half_of_the_pool_is_for_everything_else(tmp_path, caplog):
    with linker(filled("mha"), tmp_path) as one:
        most = one._engine.health().pool_bytes // 2
        assert one._room == most
    assert "hold_bytes" not in caplog.text
    with linker(filled("mha"), tmp_path, hold_bytes=1 << 40) as one:
        assert one._room == most
    assert "hold_bytes" in caplog.text


def test_a_copy_that_fails_is_told_and_holds_nothing(tmp_path, monkeypatch):
    pool, keys = filled("mha", seed=1), names(3)
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
        assert one.load("r", kv(keys, TO))
        scatter, begun = PagedKV.scatter, []

        def failing(*given):
            begun.append(given)
            return scatter(*given) if len(begun) == 1 else 1 / 0

        monkeypatch.setattr(PagedKV, "scatter", failing)
        index = one.start_layer_wise_loading()
        one.layer_done_counter.set_consumer(index)
        for layer in range(LAYERS):
            one.layer_done_counter.wait_until(layer)
        assert not one.finish_layer_wise_loading(index)
        assert held(one) == {}


def test_a_forward_pass_waits_for_layers_on_its_stream_and_not_on_its_thread(monkeypatch):
    waited = []
    stream = SimpleNamespace(wait_event=waited.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    counter = LayerEvents(2)
    index = counter.update_producer()
    counter.set_consumer(index)
    for layer in range(2):
        counter.queued(index, layer, f"behind layer {layer}")
        counter.wait_until(layer)
    assert waited == ["behind layer 0", "behind layer 1"]
    assert not any(future.done() for future in counter.futures[index]), "nothing has landed"
    for layer in range(2):
        counter.complete(index, layer)
    assert counter.finish(index)
    counter.wait_until(1)
    assert len(waited) == 2


@pytest.mark.parametrize(("kind", "shapes"), [("mha", 1), ("mla", 2)])
def test_on_a_gpu_pages_are_few_launches_and_copies_and_nothing_waits(
    kind, shapes, tmp_path, monkeypatch
):
    """By a stand-in for the driver, which counts launches, and leaves them out."""
    driver, keys = Recording(), names(3)
    staging = DeviceStaging(driver)
    monkeypatch.setattr(fused, "staging_on", lambda device: staging)
    monkeypatch.setattr(fused.Fused, "wanted", staticmethod(lambda device, wanted: True))
    with linker(filled(kind, seed=1), tmp_path) as one:
        assert offloaded(one, keys, FROM)
        assert driver.counts["launches"] == shapes
        assert driver.counts["copies"] == 1
        assert one.load("r", kv(keys, TO))
        assert one.load("s", kv(keys[:1], FROM[:1]))
        driver.counts.clear()
        assert one.finish_layer_wise_loading(one.start_layer_wise_loading())
        assert driver.counts["launches"] == LAYERS * shapes
        assert driver.counts["copies"] <= 2 * LAYERS
        assert driver.counts["tables"] == 1 + LAYERS, "slots, and the chunks of each layer"
        assert driver.counts["allocations"] == 3 + 1, "buffers once; slots"
        assert not driver.counts["synchronisations"]


def test_a_load_that_another_rank_refuses_is_released(tmp_path, monkeypatch):
    pool, keys = filled("mha", seed=1), names(3)
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
        monkeypatch.setattr(one, "_agreed", lambda mine: False)
        assert not one.load("r", kv(keys, TO))
        assert held(one) == {}
        assert not one.cancel_queued_load("r")


def test_reading_and_writing_are_switched_off_apart(tmp_path):
    pool, keys = filled("mha", seed=1), names(3)
    with linker(pool, tmp_path, write=False) as one:
        assert offloaded(one, keys, FROM)
        assert one.lookup("r", kv(keys)) == []
    with linker(pool, tmp_path) as one:
        assert offloaded(one, keys, FROM)
    with linker(pool, tmp_path, read=False) as one:
        assert one.lookup("r", kv(keys)) == []


@pytest.mark.parametrize("order", ["layer_first", "page_first"])
def test_behind_host_memory_and_behind_the_device_are_one_cache(order, tmp_path):
    device, keys = filled("mha", seed=1), names(3)
    with linker(device, tmp_path) as one:
        assert offloaded(one, keys, FROM)
    host = host_pool("mha", order)
    given = extra(tmp_path, model={"name": "tiny", "weights": "one"})
    storage = HexKVStorage(SimpleNamespace(extra_config=given))
    storage.register_mem_pool_host(host)
    assert storage.batch_get_v1(keys, slots(*TO)) == [True] * 3
    storage.close()
    for one, other in zip(FROM, TO, strict=True):
        at = slots(one)
        rows = [torch.stack([b[at] for b in half]) for half in (device.k_buffer, device.v_buffer)]
        assert torch.equal(page_of(host, other), torch.cat([r.flatten(2) for r in rows], dim=2))


@pytest.mark.parametrize("sizes", [{"pp_size": 2}, {"attn_cp_size": 2}])
def test_ranks_that_it_cannot_bring_together_are_refused(sizes, tmp_path):
    with (
        pytest.raises(ConfigError, match="use HiCache"),
        linker(filled("mha"), tmp_path, sizes=sizes),
    ):
        pass


def test_a_model_with_more_than_plain_kv_is_refused(tmp_path):
    both = (ComponentType.FULL, ComponentType.MAMBA)
    with pytest.raises(ConfigError, match="MAMBA"), linker(filled("mha"), tmp_path, both):
        pass
