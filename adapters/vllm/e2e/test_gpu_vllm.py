"""``make gpu-vllm``: whole on a processor in a real vLLM, and what makes it fail, by stand-ins."""

import json
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from engines.vllm.vllm_engines import ROOT, Answer

SIDES = ("offloading", "hexkv", "disk", "node")


@pytest.fixture
def parts(monkeypatch):
    """The modules of the benchmark."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu_vllm import page, run, sides, turns

    return SimpleNamespace(page=page, run=run, sides=sides, turns=turns)


class StandIn:
    """An engine whose connector has every prompt that it computed; a token takes 10 us."""

    MISS, HIT = 10e-6, 1e-6

    def __init__(self, model, log, *, transfer, env, patience, **settings):
        assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1", "steps would end with their saves"
        self.log = log
        self.log.write_text("all that it printed\n")
        chosen = (transfer or {}).get("kv_connector_extra_config", {})
        self.name = (transfer or {}).get("kv_connector", "none")
        self.tiers = [tier["store"] for tier in chosen.get("tiers", [{"store": "memory"}])]
        self.own, self.kept = set(), {}
        self.clock.engines.append(self)

    def generate(self, words, tokens):
        key, cached, seconds = tuple(words), 0, len(words) * self.MISS
        if key in self.own or self.kept.get(key):
            cached, seconds = len(words) // 256 * 256, len(words) * self.HIT
        self.own.add(key)
        if self.name != "none" and len(words) >= 256:
            self.kept.setdefault(key, list(self.tiers))
        self.clock.now += seconds
        said = [sum(words) % 97] * tokens
        return [Answer(said, [-1.0] * tokens, cached, "length", seconds)]

    def ask(self, task, **arguments):
        if task == "reset":
            self.own.clear()
            return {"reset": True}
        return {"rested": True}

    def forget(self, words, tier):
        self.kept[tuple(words)].remove(tier)

    def flush(self):
        """Everything is written."""

    def samples(self):
        return {"stored_bytes_total": {(): self.clock.now}, "store_seconds_total": {(): 1.0}}

    def kill(self):
        self.clock.killed.append(self)


@pytest.fixture
def go(parts, monkeypatch, tmp_path):
    """``go(engine, *options)``: exit code and JSON of a run over stand-ins, on a clock."""

    def went(kind, *options):
        clock = SimpleNamespace(now=0.0, engines=[], killed=[])
        monkeypatch.setattr(parts.run, "monotonic", lambda: clock.now)
        monkeypatch.setattr(parts.sides, "Engine", type("Engine", (kind,), {"clock": clock}))
        monkeypatch.setattr(parts.run, "served", lambda *_: nullcontext())
        written = tmp_path / "written.json"
        ended = parts.run.main(["--device", "cpu", "--output", str(written), *map(str, options)])
        assert {*clock.engines} == {*clock.killed}
        return ended, json.loads(written.read_text())

    return went


def test_every_side_is_measured_beside_its_goals_and_a_missed_goal_is_no_failure(go, parts):
    ended, found = go(StandIn, "--rounds", 4)
    assert (ended, found["failures"], found["left_out"]) == (0, [], [])
    assert [*found["lengths"]] == ["260", "516"]
    for length in found["lengths"].values():
        assert {*length["sides"]} == {*SIDES}
        assert [*length["sides"]["hexkv"]["hits"]] == ["memory", "disk"]
        assert length["rounds"] == 4
    rows = {(r["tokens"], r["side"], r.get("place"), r["what"]): r for r in found["compared"]}
    miss = rows[516, "hexkv", None, "miss / vLLM alone"]
    assert (miss["median"], miss["goal"], miss["reached"]) == (1.0, 1.03, True)
    assert rows[516, "offloading", None, "miss / vLLM alone"]["goal"] is None
    assert rows[260, "disk", "disk", "hit / computed by vLLM"]["median"] == 0.1
    # By what was done, the round that warms up with it.
    assert found["spent"]["260"]["misses"] == round(5 * len(SIDES) * 260 * StandIn.MISS, 1)
    page = parts.page.tables(found)
    assert "| vLLM alone: computed, its own prefix cache | 2.6, 0.26 | 5.16, 0.52 |" in page
    assert "| hexkv, memory, with a disk below | 2.6, 0.26 |" in page


class Spoiled(StandIn):
    """What a disk brings are other keys and values."""

    def generate(self, words, tokens):
        loaded = tuple(words) not in self.own and self.kept.get(tuple(words)) == ["disk"]
        [answer] = super().generate(words, tokens)
        if loaded and self.name == "HexKVConnector":
            answer.tokens[-1] += 1
        return [answer]


def test_a_wrong_token_fails_the_run_and_names_side_place_and_tokens(go):
    ended, found = go(Spoiled, "--rounds", 3)
    assert ended == 1
    assert {failure.split(" of ")[0] for failure in found["failures"]} == {
        "disk, a hit from disk",
        "hexkv, a hit from disk",
    }
    assert all(", not [" in failure for failure in found["failures"])


def test_an_engine_that_fails_is_reported_whole_and_the_others_go_on(go):
    class Dying(StandIn):
        def generate(self, words, tokens):
            if self.tiers == ["disk"] and len(words) == 516:
                raise AssertionError("the engine is gone")
            return super().generate(words, tokens)

    ended, found = go(Dying, "--rounds", 3)
    assert ended == 1
    [failure] = found["failures"]
    assert "disk failed at 516 tokens" in failure
    assert "all that it printed" in failure
    assert {*found["lengths"]["516"]["sides"]} >= {"offloading", "hexkv", "node"}


def test_where_time_is_short_rounds_are_left_out_then_lengths_and_both_are_named(go, parts):
    class Slow(StandIn):
        MISS = 10e-3

    ended, found = go(Slow, "--total", parts.run.ENDING + 200, "--rounds", 20)
    assert (ended, [*found["lengths"]]) == (0, ["260"])
    rounds, length = found["left_out"]
    assert "rounds of 260 tokens" in rounds
    assert "516 tokens of offloading, hexkv, disk, node" in length


def test_the_offloading_connector_may_refuse_a_machine_and_hexkv_may_not(go):
    class Refusing(StandIn):
        refused = "OffloadingConnector"

        def __init__(self, model, log, *, transfer, **settings):
            if (transfer or {}).get("kv_connector") == self.refused:
                log.write_text("a trace\nException: for CUDA only\n")
                raise AssertionError("the engine is gone")
            super().__init__(model, log, transfer=transfer, **settings)

    ended, found = go(Refusing, "--rounds", 2)
    assert (ended, found["failures"]) == (0, [])
    assert found["left_out"] == ["offloading did not start: Exception: for CUDA only"]
    Refusing.refused = "HexKVConnector"
    ended, found = go(Refusing, "--rounds", 2)
    assert ended == 1
    assert len(found["failures"]) == 3
    assert "a trace" in found["failures"][0]


def test_where_memory_is_short_sides_run_one_by_one_and_where_it_lacks_nothing_starts(
    go, parts, monkeypatch, capsys
):
    class Counted(StandIn):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            assert len({*self.clock.engines} - {*self.clock.killed}) <= 2

    pool = parts.sides.Model(parts.sides.SMALL, 516).pool
    monkeypatch.setattr(parts.run, "_available", lambda: 2 * pool - 1)
    ended, found = go(Counted, "--rounds", 2)
    assert (ended, found["failures"]) == (0, [])
    assert {*found["lengths"]["516"]["sides"]} == {*SIDES}
    monkeypatch.setattr(parts.run, "_available", lambda: pool - 1)
    capsys.readouterr()
    assert parts.run.main(["--device", "cpu"]) == 2
    [line] = capsys.readouterr().out.splitlines()
    assert "of host memory" in line


REAL = ("--device", "cpu", "--rounds", "2", "--total", "3000")


@pytest.mark.thorough
def test_on_a_processor_a_real_vllm_is_measured_whole_and_has_the_same_tokens(tmp_path):
    written = tmp_path / "written.json"
    command = [sys.executable, "-m", "benchmarks.gpu_vllm", *REAL]
    site = ("--site", str(tmp_path / "site"), "--output", str(written))
    ended = subprocess.run([*command, *site], cwd=ROOT, timeout=3600).returncode
    found = json.loads(written.read_text())
    assert (ended, found["failures"]) == (0, [])
    assert "Exception: CPU Offloading" in found["left_out"][0]
    assert [*found["lengths"]] == ["260", "516"]
    for text, length in found["lengths"].items():
        assert {*length["sides"]} == {"hexkv", "disk", "node"}
        for name, one in length["sides"].items():
            assert one["same_tokens"] == 2 * (1 + len(one["hits"])), name
        [loaded] = length["sides"]["disk"]["hits"].values()
        assert loaded["cached"] == [int(text) // 256 * 256]
    goals = [row for row in found["compared"] if row["goal"]]
    assert {row["reached"] for row in goals} <= {True, False}
    assert {row["side"] for row in goals} == {"hexkv", "disk", "node"}


@pytest.mark.thorough
def test_on_a_processor_other_weights_below_hexkv_fail_the_run(parts, monkeypatch, tmp_path):
    begin = parts.sides.Engine

    def other(model, log, *, transfer, **settings):
        seed = 1 if transfer else 0
        return begin(model, log, transfer=transfer, **settings | {"seed": seed})

    monkeypatch.setattr(parts.sides, "Engine", other)
    written = tmp_path / "written.json"
    only = ("--side", "hexkv", "--lengths", "260", "--pool", "mmap", "--output", str(written))
    assert parts.run.main([*REAL, *only]) == 1
    assert "hexkv, a miss of 260 tokens" in json.loads(written.read_text())["failures"][0]


def test_without_a_gpu_it_says_so_in_one_line_and_starts_nothing(parts, monkeypatch, capsys):
    from benchmarks.gpu_vllm import __main__ as launcher

    monkeypatch.setattr(launcher, "_has_gpu", lambda around: False)
    monkeypatch.setattr(sys, "argv", ["gpu_vllm"])
    with pytest.raises(SystemExit) as ended:
        launcher.main()
    assert ended.value.code == 2
    assert (
        capsys.readouterr().out == "there is no CUDA device on this machine: nothing is measured\n"
    )
