"""Pages go through the tiers between host pools of SGLang, in every layout and each interface."""

import pytest

from engines.sglang.sglang_pools import (
    PAGES,
    POOLS,
    backend,
    extra,
    host_pool,
    names,
    page_of,
    same,
    slots,
)

FROM, TO = (5, 1, 9), (2, 3, 11)


def put(storage, pool, way, keys):
    if way == "v1":
        return all(storage.batch_set_v1(keys, slots(*FROM)))
    flat = [pool.get_data_page(number * pool.page_size) for number in FROM]
    return storage.batch_set(keys, flat)


def fetch(storage, pool, way, keys):
    if way == "v1":
        return storage.batch_get_v1(keys, slots(*TO))
    dummies = [pool.get_dummy_flat_data_page() for _ in keys]
    pages = storage.batch_get(keys, dummies)
    for number, page in zip(TO, pages, strict=True):
        if page is not None:
            pool.set_from_flat_data_page(number * pool.page_size, page)
    return [page is not None for page in pages]


def arrived(source, target):
    return all(
        same(page_of(source, one), page_of(target, other))
        for one, other in zip(FROM, TO, strict=True)
    )


@pytest.mark.parametrize("layout", ["auto", "opaque"])
@pytest.mark.parametrize("writing", ["v0", "v1"])
@pytest.mark.parametrize("reading", ["v0", "v1"])
@pytest.mark.parametrize(("kind", "order"), POOLS)
def test_a_page_comes_back_into_another_slot_bit_for_bit(
    kind, order, writing, reading, layout, tmp_path
):
    source, target = host_pool(kind, order, seed=1), host_pool(kind, order)
    keys = names(3)
    with backend(source, extra(tmp_path, layout=layout), is_mla_model=kind == "mla") as storage:
        assert storage.batch_exists(keys) == 0
        assert put(storage, source, writing, keys)
        assert storage.batch_exists(keys) == 3
    with backend(target, extra(tmp_path, layout=layout), is_mla_model=kind == "mla") as storage:
        assert fetch(storage, target, reading, keys) == [True] * 3
    assert arrived(source, target)
    untouched = next(n for n in range(PAGES) if n not in TO)
    assert not page_of(target, untouched).any()


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_every_layout_finds_what_every_other_one_stored(kind, tmp_path):
    orders = [order for other, order in POOLS if other == kind]
    source = host_pool(kind, orders[0], seed=2)
    with backend(source, extra(tmp_path), is_mla_model=kind == "mla") as storage:
        assert put(storage, source, "v1", names(3))
    for order in orders:
        target = host_pool(kind, order)
        with backend(target, extra(tmp_path), is_mla_model=kind == "mla") as storage:
            assert fetch(storage, target, "v1", names(3)) == [True] * 3
        assert arrived(source, target)


def test_only_leading_pages_count_and_a_run_may_begin_anywhere():
    pool, keys = host_pool("mha", "page_first", seed=3), names(6)
    with backend(pool, extra()) as storage:
        assert storage.batch_set_v1(keys[:2], slots(0, 1)) == [True] * 2
        assert storage.batch_set_v1(keys[3:], slots(3, 4, 5)) == [True] * 3
        assert storage.batch_exists(keys) == 2
        assert storage.batch_exists(keys[3:]) == 3
        assert storage.batch_get_v1(keys[:4], slots(6, 7, 8, 9)) == [True, True, False, False]
        assert storage.exists(keys[4])
        assert not storage.exists(keys[2])


def test_putting_what_is_there_writes_nothing(tmp_path):
    pool, keys = host_pool("mha", "page_first", seed=4), names(3)
    with backend(pool, extra(tmp_path)) as storage:
        assert all(storage.batch_set_v1(keys, slots(*FROM)))
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("??/*.hexkv")}
        assert len(before) == 3
        assert all(storage.batch_set_v1(keys, slots(*FROM)))
        assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("??/*.hexkv")} == before


@pytest.mark.parametrize("how", ["bit", "short", "zeros"])
def test_a_damaged_page_is_a_miss_and_is_repaired_by_the_next_store(how, tmp_path):
    source, target = host_pool("mha", "page_first", seed=5), host_pool("mha", "page_first")
    keys = names(3)
    with backend(source, extra(tmp_path)) as storage:
        storage.batch_set_v1(keys, slots(*FROM))
        [file] = tmp_path.glob(f"??/*{keys[1]}*")
        whole = file.read_bytes()
        damaged = {
            "bit": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
            "short": whole[: len(whole) // 2],
            "zeros": bytes(len(whole)),
        }
        file.write_bytes(damaged[how])
        assert storage.batch_get_v1(keys, slots(0, 1, 2)) == [True, False, False]
        assert storage.batch_exists(keys) == 1
        assert all(storage.batch_set_v1(keys, slots(*FROM)))
    with backend(target, extra(tmp_path)) as storage:
        assert fetch(storage, target, "v1", keys) == [True] * 3
    assert arrived(source, target)
