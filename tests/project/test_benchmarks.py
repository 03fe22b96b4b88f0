"""What the benchmarks promise: fair turns, ratios of neighbours, and JSON of a known shape."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each

ROOT = Path(__file__).parents[2]
BY_LAYERS = [
    (where, what)
    for where in ("memory", "disk", "disk, direct")
    for what in ("", ", what a host waits that computes 1.5 times as long")
]
NAMES = [
    "keys: uint32 buffer",
    "keys: int64 numpy array",
    "keys: int64 torch tensor",
    "keys: list",
    "lookup",
    "lookup, again",
    "lookup, 300 tokens more",
    "lookup, pin, unpin",
    "second store",
    *(
        f"segments: {which}"
        for which in (
            "all known",
            "none known",
            "all known, of frequent tokens",
            "all known, beginning alike",
        )
    ),
    "memory, contiguous: store",
    "memory, contiguous: retrieve",
    "memory, paged: store",
    "memory, paged: retrieve",
    *(f"new window of 48 tokens: {way}" for way in ("store", "retrieve")),
    *(
        f"128 pages of 16 tokens, window alone, slots in {order}order: {way}"
        for order in ("", "no ")
        for way in ("gather", "scatter")
    ),
    *(f"128 pages of 16 tokens: {way}" for way in ("store", "retrieve")),
    "disk: store",
    "disk: store",
    "disk: retrieve",
    "disk: retrieve",
    *["disk: retrieve, cold"] * 2,
    *["disk, direct: store"] * 2,
    *["disk, direct: retrieve"] * 2,
    *(f"{where}: retrieve by layers{what}" for where, what in BY_LAYERS[:2]),
    "memory: store by layers",
    *(f"{where}: retrieve by layers{what}" for where, what in BY_LAYERS[2:]),
    *(
        f"{at}, pool of {blocks} blocks: {count} requests at once"
        for at in ("disk", "Redis")
        for blocks in (8, 31, 93)
        for count in (4, 16)
    ),
    *(f"memory: {count} requests at once" for count in (4, 16)),
    *(f"bare copies: {count} threads at once" for count in (4, 16)),
]


@pytest.fixture
def measure(monkeypatch):
    """Without collecting garbage before each turn: that of a whole run of tests takes long."""
    monkeypatch.syspath_prepend(str(ROOT))
    module = import_module("benchmarks.rig.measure")
    monkeypatch.setattr(module, "gc", SimpleNamespace(collect=lambda: None))
    return module


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return import_module("benchmarks.rig.machine")


class Machine:
    """A clock that only work moves, and what was done in which order."""

    def __init__(self):
        self.time = 0.0
        self.log = []

    def clock(self):
        return self.time

    def work(self, name, *seconds):
        """Takes so long, each time the next of *seconds*; the last one for ever."""
        left = list(seconds)

        def run():
            self.log.append(name)
            self.time += left.pop(0) if len(left) > 1 else left[0]

        return run


def compared(measure, machine, path, limit, goal, rounds=3):
    comparison = measure.Comparison("path", "limit", 10**9, path, limit, goal)
    return measure.compare(comparison, rounds, turn=0.05, clock=machine.clock, cpu=machine.clock)


def test_sides_take_turns_and_the_first_turns_do_not_count(measure):
    machine = Machine()
    reset = machine.work("reset", 5.0)
    path = measure.Turn(machine.work("path", 100.0, 2.0), before=reset)
    limit = measure.Turn(machine.work("limit", 100.0, 1.0))
    result = compared(measure, machine, path, limit, measure.Goal("speed"))
    assert machine.log == ["limit", "reset", "path"] * 4
    assert result.ratios == [0.5, 0.5, 0.5]


def test_a_ratio_compares_neighbours_so_a_slow_moment_cancels_out(measure):
    machine = Machine()
    reset = machine.work("reset", 0.0)
    path = measure.Turn(machine.work("path", 1.0, 2.0, 20.0, 2.0), before=reset)
    limit = measure.Turn(machine.work("limit", 1.0, 1.0, 10.0, 1.0))
    assert compared(measure, machine, path, limit, measure.Goal("cost")).ratios == [2.0] * 3


def test_short_work_is_repeated_equally_on_both_sides(measure):
    machine = Machine()
    path = measure.Turn(machine.work("path", 0.02))
    limit = measure.Turn(machine.work("limit", 0.01))
    result = compared(measure, machine, path, limit, measure.Goal("cost"), rounds=2)
    assert result.repeats == 5
    assert machine.log == ["limit", "path"] + (["limit"] * 5 + ["path"] * 5) * 2
    assert result.path.seconds.median == pytest.approx(0.02)
    assert result.path.gb_per_second == pytest.approx(50)
    assert result.path.cpu_seconds_per_gb == pytest.approx(0.02)


@each(
    ("kind", "bound", "ratio", "reached"),
    [
        ("speed", 0.95, 0.95, True),
        ("speed", 0.95, 0.94, False),
        ("cost", 1.5, 1.5, True),
        ("cost", 1.5, 1.51, False),
        ("cost", None, 9.0, None),
    ],
)
def test_a_goal_is_a_least_share_of_speed_or_a_greatest_multiple_of_time(
    measure, kind, bound, ratio, reached
):
    assert measure.Goal(kind, bound).reached(ratio) is reached


@given(values=st.lists(st.floats(0.001, 1e6), min_size=2, max_size=30))
def test_a_spread_is_in_order_and_within_its_values(values):
    # Not a fixture: hypothesis calls this many times.
    sys.path.insert(0, str(ROOT))
    try:
        spread = import_module("benchmarks.rig.measure").Spread.of(values)
    finally:
        sys.path.remove(str(ROOT))
    assert min(values) == spread.least <= spread.lower <= spread.median
    assert spread.median <= spread.upper <= spread.most == max(values)


def test_a_path_that_does_something_else_stops_the_run(measure):
    def wrong():
        measure.must(False, "nothing was loaded")

    with pytest.raises(measure.WrongResult, match="nothing was loaded"):
        compared(
            measure,
            Machine(),
            measure.Turn(wrong),
            measure.Turn(lambda: None),
            measure.Goal("speed"),
        )


def test_room_is_checked_before_anything_is_written(machine, tmp_path):
    machine.check_room(tmp_path, 1)
    with pytest.raises(machine.NoRoom, match="are needed"):
        machine.check_room(tmp_path, 1 << 62)


@pytest.mark.thorough
def test_the_quick_run_writes_json_of_the_known_shape_and_leaves_nothing_else(tmp_path):
    scratch, output = tmp_path / "scratch", tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks", "--quick"]
    done = subprocess.run(
        [*command, "--dir", str(scratch), "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []
    written = output.read_text()
    assert str(tmp_path) not in written
    assert str(ROOT) not in written
    run = json.loads(written)
    assert run["format"] == 1
    assert run["quick"] is True
    assert run["torch_threads"] == 1
    assert {"processor", "cores", "memory_bytes", "file_system", "load_after"} <= set(
        run["machine"]
    )
    assert {"python", "torch", "hexkv"} <= set(run["versions"])
    assert [result["name"] for result in run["results"]] == NAMES
    for result in run["results"]:
        assert result["kind"] in {"speed", "cost", "cpu"}
        assert len(result["ratios"]) == run["rounds"]
        assert result["ratio"]["lower"] <= result["ratio"]["median"] <= result["ratio"]["upper"]
        for side in ("path_side", "limit_side"):
            assert result[side]["seconds"]["median"] > 0
            assert result[side]["gb_per_second"] > 0
            assert result[side]["cpu_seconds_per_gb"] >= 0


@pytest.mark.thorough
def test_the_peer_is_asked_for_each_of_our_small_calls(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    peer = import_module("benchmarks.calls.lmcache_calls")
    if not (peer.PLACE / "lmcache").is_dir():
        if os.environ.get("CI"):
            pytest.fail("lmcache is missing, and CI skips nothing")
        pytest.skip("lmcache is missing: make .venv/lmcache/made")
    fixed = import_module("benchmarks.calls.fixed")
    (chunk,) = chunks = fixed.SMALL_CHUNKS[-1:]
    theirs = peer.peers_turn(fixed.SMALL_PROMPT, chunks)
    ours = dict(fixed._small(chunk)).keys()
    assert theirs.keys() == {name for name in ours if "bare copy" not in name}
    assert min(theirs.values()) > 0
