"""A model whose windows SGLang keeps in a pool of their own: both pools, or no hit."""

from collections import Counter

import pytest

from engines.sglang.sglang_engines import PAGE, PAGES, PATIENT, behind, frames, prompt, sound
from engines.sglang.sglang_windows import WINDOW, checkpoint
from processes import until

FULL = PAGES * PAGE
TRAILING = -(-(WINDOW - 1) // PAGE)
"""Pages that a window needs before the place where a prefix ends."""


def config(root):
    disk = {"store": "disk", "settings": {"root": str(root)}}
    return {"pool": {"bytes": "64MiB"}, "deadlines": PATIENT, "tiers": [disk]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference(greedy, folder):
    return greedy(checkpoint(folder))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


def of_windows(files):
    """Files of the pool that has fewer of them: a key begins with its namespace."""
    spaces = Counter(file.name[:32] for file in files)
    assert sorted(spaces.values()) == [TRAILING, PAGES]
    return sorted(file for file in files if spaces[file.name[:32]] == TRAILING)


def test_kv_and_windows_come_back_in_another_process_or_neither(start, same, root, folder):
    words = prompt("windows")
    first = start(folder, **behind(**config(root)))
    assert same(first, words)[0].cached == 0
    until(lambda: len(frames(root)) == PAGES + TRAILING)
    first.kill()

    second = start(folder, **behind("page_first", "kernel", **config(root)))
    assert same(second, words)[0].storage == FULL
    second.flush()
    victim = of_windows(frames(root))[0]
    victim.write_bytes(bytes(victim.stat().st_size))
    assert same(second, words)[0].storage < FULL
    assert second.counted("corrupt") == 1
    until(lambda: sound(victim))
    second.flush()
    assert same(second, words)[0].storage == FULL
