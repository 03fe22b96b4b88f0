"""What a rank reports to vLLM: totals by labels, of which a lost report loses nothing."""

from hexkv.adapters.vllm.messages import Missed, Scope
from hexkv.adapters.vllm.metrics.metrics import EngineReport, values_of
from hexkv.adapters.vllm.scheduler.requests import Found, Tracked
from hexkv.plugins.observing.telemetry import Totals
from hexkv.ports import CounterName, Health, Reason, TierHealth


def health(used):
    tier = TierHealth("disk", 1, used, 100, 0, "open", "closed", 0, indexing=False, tenants={})
    return Health("open", False, (tier,), 0, 0, {}, {}, {}, 0)


def test_a_report_has_totals_and_states_and_then_what_changed():
    totals, now, used = Totals(), [0.0], [40]
    report = EngineReport(2, totals, lambda: health(used[0]), lambda: now[0])
    first = report.take()
    assert first["hit_tokens"] == {"2\x1fdisk": 0}
    assert values_of(next(iter(first["missed_tokens"])))[0] == "2"
    assert first["tier_breaker"] == {"2\x1fdisk\x1fread": 2, "2\x1fdisk\x1fwrite": 0}
    assert report.take()["hit_tokens"] == first["hit_tokens"]  # the first may have been dropped
    now[0] = 10.0
    assert report.take() == {}
    for _ in range(2):
        totals.count(CounterName.HIT_TOKENS, 64, tier="disk")
    for now[0] in (10.1, 10.2, 14.0):
        assert report.take() == {"hit_tokens": {"2\x1fdisk": 128}}
    used[0], now[0] = 60, 20.0
    assert report.take() == {"tier_used_bytes": {"2\x1fdisk": 60}}
    used[0], now[0] = 80, 20.5
    assert report.take() == {}  # a second has not passed since it was asked
    now[0] = 21.5
    assert report.take() == {"tier_used_bytes": {"2\x1fdisk": 80}}


def test_what_nobody_has_of_a_request_is_missed_and_what_vllm_has_is_not():
    tracked = Tracked(None, Scope(), reads=True, writes=True)
    tracked.asked, tracked.found = 100, Found(32, {"disk": 32}, Reason.TIER_OFF)
    behind = Missed(Reason.BEHIND_A_MISS, 2, 36)
    assert tracked.missed(32) == [Missed(Reason.TIER_OFF, 1, 32), behind]
    tracked.found = Found(40, {"disk": 40})  # a tail
    assert tracked.missed(32) == [Missed(Reason.ABSENT, 1, 24), Missed(Reason.ABSENT, 2, 36)]
    tracked.local = 100
    assert tracked.missed(32) == []
