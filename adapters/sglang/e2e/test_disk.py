"""Hits from a disk in a process that stored nothing, and what a bad disk does to them."""

import pytest

from engines.sglang.sglang_engines import (
    PAGE,
    PAGES,
    PATIENT,
    behind,
    frames,
    linked,
    prompt,
    sound,
)
from processes import until


def config(root, **more):
    """The disk alone: nothing hides what lies on it."""
    disk = {"store": "disk", "settings": {"root": str(root)}, **more}
    return {"pool": {"bytes": "128MiB"}, "deadlines": PATIENT, "tiers": [disk]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def stored(start, same, root):
    """An engine stored prompts and was killed; the files of each."""
    engine = start(**behind(**config(root)))
    files, seen = {}, set()
    for name in ("whole", "short", "zeros", "linked", "bad link"):
        [answer] = same(engine, prompt(name))
        assert answer.cached == 0
        expected = len(seen) + PAGES
        until(lambda expected=expected: len(frames(root)) == expected)
        files[name], seen = frames(root) - seen, frames(root)
    engine.kill()
    return files


@pytest.fixture(scope="module")
def second(start, root, stored):
    """Another layout of host memory, and flat copies in place of pages of the pool."""
    return start(**behind("page_first", "kernel", interface_v1=0, **config(root)))


def test_another_process_hits_what_a_killed_one_stored(second, same):
    [answer] = same(second, prompt("whole"))
    assert (answer.cached, answer.storage) == (PAGES * PAGE, PAGES * PAGE)


def test_damaged_pages_cost_hits_are_counted_and_are_repaired(second, start, same, root, stored):
    for how in ("short", "zeros"):
        victim = min(stored[how])
        size, before = victim.stat().st_size, second.counted("corrupt")
        victim.write_bytes(victim.read_bytes()[: size // 2] if how == "short" else bytes(size))
        [answer] = same(second, prompt(how))
        assert answer.storage < PAGES * PAGE
        assert second.counted("corrupt") == before + 1
        until(lambda victim=victim: sound(victim))
    third = start(**behind(**config(root)))
    answers = same(third, prompt("short"), prompt("zeros"))
    assert [answer.storage for answer in answers] == [PAGES * PAGE] * 2
    assert third.counted("corrupt") == 0
    third.kill()


def test_prompts_that_run_at_once_get_their_own_tokens(second, same):
    mixed = [prompt("whole"), prompt("new one"), prompt("zeros"), prompt("new two")]
    second.flush()
    answers = same(second, *mixed)
    assert [answer.storage for answer in answers] == [PAGES * PAGE, 0, PAGES * PAGE, 0]


@pytest.fixture(scope="module")
def linker(start, root, stored):
    """No host memory of SGLang's between the device and the disk."""
    return start(**linked(**config(root)))


def test_the_linker_finds_what_hicache_stored(linker, same):
    [answer] = same(linker, prompt("linked"))
    # SGLang has a word for what a linker loads, and it is not "storage".
    assert (answer.cached, answer.host, answer.storage) == (PAGES * PAGE, PAGES * PAGE, 0)


def test_a_damaged_page_is_computed_by_the_linkers_engine_and_repaired(linker, same, stored):
    victim = min(stored["bad link"])
    victim.write_bytes(victim.read_bytes()[:5000])
    [answer] = same(linker, prompt("bad link"))
    assert answer.cached < PAGES * PAGE
    assert linker.counted("corrupt") == 1
    until(lambda: sound(victim))


def test_the_linkers_engine_stores_and_finds_again(linker, same, root):
    before = len(frames(root))
    [answer] = same(linker, prompt("by the linker"))
    assert answer.cached == 0
    until(lambda: len(frames(root)) == before + PAGES)
    linker.flush()
    mixed = same(linker, prompt("by the linker"), prompt("linked"))
    assert [answer.cached for answer in mixed] == [PAGES * PAGE] * 2


def test_a_full_tier_evicts_and_answers_stay_right(start, same, tmp_path):
    engine = start(**linked(**config(tmp_path, budget="6MiB")))
    for name in ("one", "two", "three"):
        same(engine, prompt(name))
    until(lambda: 0 < sum(file.stat().st_size for file in frames(tmp_path)) <= 6 << 20)
    engine.flush()
    answers = same(engine, prompt("one"), prompt("three"))
    assert all(answer.cached < PAGES * PAGE for answer in answers)
    engine.kill()
