"""Two ranks of one model, each with its own heads in one directory."""

from engines.sglang.sglang_engines import PAGE, PAGES, PATIENT, behind, frames, linked, prompt
from processes import until


def test_ranks_find_their_own_slices_again(start, same, tmp_path):
    disk = {"store": "disk", "settings": {"root": str(tmp_path)}}
    config = {"pool": {"bytes": "64MiB"}, "deadlines": PATIENT, "tiers": [disk]}
    bound = {"tp_size": 2, "env": {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}}
    first = start(**bound, **behind(**config))
    assert same(first, prompt("two ranks"))[0].cached == 0
    until(lambda: len(frames(tmp_path)) == 2 * PAGES)
    first.kill()

    victim = min(frames(tmp_path))
    second = start(**bound, **linked(**config))
    [answer] = same(second, prompt("two ranks"))
    assert answer.cached == PAGES * PAGE
    second.flush()
    victim.write_bytes(bytes(victim.stat().st_size))
    # One rank cannot load it: none does.
    [answer] = same(second, prompt("two ranks"))
    assert answer.cached < PAGES * PAGE
