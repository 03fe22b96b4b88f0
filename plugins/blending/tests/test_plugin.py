"""An engine has segments where the package is installed, and says so where it is not."""

import pytest

from configured import LAYOUT, NAMESPACE, PATIENT
from hexkv.blending.api import segments_of
from hexkv.blending.ports import BLEND_KINDS, BlendOutcome
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.observing.families import REASONS
from hexkv.ports import ConfigError, CounterName, InvalidRequest, Namespace


def test_without_the_package_there_are_no_segments_and_a_section_for_them_names_it(tmp_path):
    disk = {"store": "disk", "settings": {"root": str(tmp_path)}}
    small = {"pool": {"bytes": "4MiB"}, "deadlines": PATIENT, "tiers": [disk]}
    hers = Namespace(NAMESPACE.model, LAYOUT, salt="hers")
    segment = list(range(300))
    window = HeapKV(LAYOUT, len(segment)).compute(segment)
    with build(load(None, {}, small), NAMESPACE) as cache:
        assert segments_of(cache).register(segment) == 0
        for space in (NAMESPACE, hers):
            assert segments_of(cache).store(segment, window, namespace=space).stored_tokens == 300
    registry = discover()
    del registry.adapters["segments", "anywhere"]
    with build(load(None, {}, small), NAMESPACE, registry=registry) as cache:
        with pytest.raises(InvalidRequest, match="without hexkv-blending"):
            segments_of(cache)
        # What others stored there goes all the same.
        assert cache.clear(namespace=hers).chunks == 2
        assert cache.clear().chunks == 2
    configured = load(None, {}, small | {"segments": {"separator": [1]}})
    with pytest.raises(ConfigError, match=r"^segments.*: pip install hexkv-blending$"):
        build(configured, NAMESPACE, registry=registry)
    # The labels are listed twice: processes without the package have their series, too.
    assert [*REASONS[CounterName.BLEND_REQUESTS]] == [*BlendOutcome]
    assert REASONS[CounterName.BLEND_TOKENS] == BLEND_KINDS
