"""What SGLang computes sooner than a tier brings it is not loaded, as its forward passes show."""

from dataclasses import fields
from inspect import signature
from types import SimpleNamespace

import pytest
from sglang.srt.model_executor import model_runner
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

from engines.sglang.sglang_pools import PAGE, backend, extra, host_pool, names, slots
from hexkv.adapters.sglang import forward_times, hooks
from hexkv.adapters.sglang.forward_times import ForwardTimes
from hexkv.ports import CounterName, Reason
from processes import until


class Mark:
    """A place on a clock that only forward passes move."""

    now = 0.0

    def __init__(self):
        self.when = Mark.now

    def until(self, later):
        return later.when - self.when


@pytest.fixture
def times(monkeypatch):
    made = ForwardTimes()
    monkeypatch.setattr(forward_times, "FORWARDS", made)
    monkeypatch.setattr("hexkv.adapters.sglang.hicache.FORWARDS", made)
    monkeypatch.setattr(forward_times, "marks", lambda device: Mark)
    return made


def runner(**more):
    counter = SimpleNamespace(consumer_index=-1)
    pool = SimpleNamespace(layer_transfer_counter=counter)
    return SimpleNamespace(
        **{"is_draft_worker": False, "device": "cpu", "pp_size": 1, "token_to_kv_pool": pool} | more
    )


def batch(*rows, mode=ForwardMode.EXTEND):
    """Rows of a request, the tokens before it, and the tokens that are computed."""
    rids, before, counts = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
    return SimpleNamespace(
        forward_mode=mode, rids=rids, extend_prefix_lens_cpu=before, extend_seq_lens_cpu=counts
    )


def run(run_by, given, seconds):
    def compute(self, forward_batch, *more):
        Mark.now += seconds
        return more

    assert forward_times._timed(compute)(run_by, given, "passed on") == ("passed on",)


def test_a_prompt_in_chunks_beside_others_has_its_share_of_each_forward_pass(times):
    assert times.rate(1000) is None
    for seconds in (9.0, 0.6):  # the first one compiles
        run(runner(), batch(("a", 0, 600)), seconds)
        run(runner(), batch(("a", 600, 400), ("b", 0, 400), mode=ForwardMode.MIXED), 0.8)
    assert 300 < times.rate(1000) < 1000
    for _ in range(12):
        run(runner(), batch(("c", 0, 600), ("decodes", 900, 1)), 0.601)
        run(runner(), batch(("c", 600, 400)), 0.4)
    assert times.rate(1000) == pytest.approx(1000.0, rel=0.01)
    other = ForwardTimes()
    for given, by in (
        (batch(("d", 0, 900), mode=ForwardMode.DECODE), runner()),
        (batch(("d", 0, 63)), runner()),
        (batch(("d", 0, 900)), runner(is_draft_worker=True)),
        (batch(), runner()),
    ):
        assert other.begin(by, given) is None
    loading = runner()
    loading.token_to_kv_pool.layer_transfer_counter.consumer_index = 0
    assert other.begin(loading, batch(("d", 0, 900))) is None, "it waits for loads within"
    run(runner(), SimpleNamespace(), 1.0)  # of a release that has other names
    assert other.rate(1000) is None


def test_stages_of_a_pipeline_compute_one_after_the_other(times):
    run(runner(pp_size=2), batch(("a", 0, 1000)), 1.0)
    assert times.rate(1000) == pytest.approx(500.0)


def test_sglangs_own_classes_have_what_is_asked_of_them():
    assert list(signature(model_runner.ModelRunner.forward).parameters)[:2] == [
        "self",
        "forward_batch",
    ]
    asked = {"forward_mode", "rids", "extend_prefix_lens_cpu", "extend_seq_lens_cpu"}
    assert asked <= {field.name for field in fields(ForwardBatch)}
    hooks.install()
    assert hasattr(model_runner.ModelRunner.forward, "hexkv_plain")


def test_a_slow_tier_is_left_out_where_sglang_computes_sooner(times, tmp_path):
    keys = names(3)
    with backend(host_pool("mha", "page_first", seed=1), extra(tmp_path)) as storage:
        assert all(storage.batch_set_v1(keys, slots(0, 1, 2)))
        until(lambda: storage.batch_exists(keys) == 3)
        engine = storage._engine
        [tier] = engine.admin.stack.tiers
        tier.link.began(0.0)
        tier.link.ended(1.0, 100.0)  # tokens in a second
        times._meter._speed.observe(3 * PAGE, 3 * PAGE / 1e6)
        assert storage.batch_exists(keys) == 0
        total = engine.telemetry.total
        assert total(CounterName.MISSED_TOKENS, reason=Reason.SLOWER) == 3 * PAGE
        assert total(CounterName.MISSES) == total(CounterName.LOOKUPS) == 3
        [why, *_] = engine.admin.explain(storage._store.keys(keys))
        assert why["disk"].reason is Reason.SLOWER
        times._meter._speed.observe(3 * PAGE, 60.0)
        assert storage.batch_exists(keys) == 3
