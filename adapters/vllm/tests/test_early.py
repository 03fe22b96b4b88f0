"""A mistake is told where vLLM reads its configuration, in the last two lines of its log."""

import sys
from types import SimpleNamespace

import pytest

from hexkv.adapters.vllm.configuration import early
from hexkv.contracts.kit.cases import each
from hexkv.ports import ConfigError

HUGE = {"pool": {"bytes": "1000000GiB"}}
OFFLOADING = {"spec_name": "HexKVOffloadingSpec"}


def transfer(connector, extra):
    return SimpleNamespace(
        kv_connector=connector, kv_connector_extra_config=extra, engine_id=repr((connector, extra))
    )


def factory():
    """As vLLM's is: it knows connectors by the configuration that names them."""

    class Factory:
        @classmethod
        def get_connector_class(cls, transfer):
            return f"{cls.__name__} of {transfer.kv_connector}"

    early.watch(Factory)
    early.watch(Factory)
    return Factory


@each(
    ("connector", "extra", "says"),
    [
        ("HexKVConnector", {"tires": []}, r"tires \(from kv_connector_extra_config\).*tiers"),
        ("HexKVConnector", HUGE, r"pool\.bytes \(from kv_connector_extra_config\): each rank"),
        ("OffloadingConnector", OFFLOADING | {"hexkv": {"tires": []}}, r"tires \(from"),
        ("OffloadingConnector", OFFLOADING | {"hexkv": HUGE}, r"pool\.bytes \(from"),
    ],
)
def test_a_mistake_is_refused_before_anything_starts_and_is_the_last_that_is_said(
    connector, extra, says, monkeypatch, capsys
):
    asked = factory()
    traced = []
    monkeypatch.setattr(sys, "excepthook", lambda *told: traced.append(told))
    with pytest.raises(ConfigError, match=says) as refused:
        asked.get_connector_class(transfer(connector, extra))
    sys.excepthook(refused.type, refused.value, refused.tb)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "vLLM does not start, for hexkv cannot be configured so:"
    assert second == str(refused.value)
    assert not traced
    other = ValueError("something else")
    sys.excepthook(ValueError, other, None)
    assert traced == [(ValueError, other, None)]


def test_what_is_right_or_somebody_elses_is_found_as_before_and_looked_at_once(monkeypatch):
    asked = factory()
    for connector, extra in (("HexKVConnector", {}), ("OffloadingConnector", {"tires": []})):
        one = transfer(connector, extra)
        assert asked.get_connector_class(one) == f"Factory of {connector}"
    looked = transfer("HexKVConnector", {"pool": {"bytes": "64MiB"}})
    asked.get_connector_class(looked)
    # By then the pools have their memory, and nobody needs it a second time.
    monkeypatch.setattr(early, "available_bytes", lambda: 0)
    asked.get_connector_class(looked)
