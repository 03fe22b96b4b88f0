"""What requests may say about themselves, and what becomes of nonsense."""

import logging
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.adapters.vllm.messages import Kept
from hexkv.adapters.vllm.scheduler.reading import RequestParams
from hexkv.adapters.vllm.scheduler.requests import Allowed
from hexkv.contracts.kit.cases import each

BOTH = SimpleNamespace(is_kv_consumer=True, is_kv_producer=True)
HOLD = "0f" * 16
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(HOLD),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["read", "write", "hold", "x"]), inner)
    ),
    max_leaves=5,
)


@given(st.lists(JSON, max_size=20))
def test_nonsense_of_requests_is_done_without_and_logged_once(wanted):
    params = RequestParams(BOTH, ConnectorSettings())
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("vllm.hexkv")
    log.addHandler(handler)
    try:
        for said in wanted * 2:
            sound = said is None or (
                isinstance(said, dict)
                and said.keys() <= {"read", "write", "hold"}
                and all(isinstance(said.get(name, True), bool) for name in ("read", "write"))
                and said.get("hold", "") in ("", HOLD)
            )
            both = said or {}
            expected = (both.get("read", True), both.get("write", True)) if sound else (False,) * 2
            may = params.allowed({"hexkv": said, "do_remote_prefill": True})
            assert may[:4] == (*expected, False, sound)
    finally:
        log.removeHandler(handler)
    texts = [record.getMessage() for record in records]
    assert len(texts) == len(set(texts)) <= 20, "each kind once"
    assert params.allowed(None) == params.allowed([1]) == Allowed(True, True)


def test_a_request_gets_no_more_than_the_connector_s_settings_and_role():
    params = RequestParams(SimpleNamespace(is_kv_consumer=False, is_kv_producer=True),
                           ConnectorSettings(write=False))  # fmt: skip
    assert params.allowed({"hexkv": {"read": True, "write": True}})[:2] == (False, False)


ROLES = {"kv_producer": (True, False), "kv_consumer": (False, True), "kv_both": (False, False)}
GIVES, TAKES = {"do_remote_decode": True}, {"do_remote_prefill": True}


@each("role", ROLES)
def test_who_hands_over_is_said_by_the_role_the_request_or_the_settings(role):
    transfer = SimpleNamespace(
        is_kv_consumer=role != "kv_producer", is_kv_producer=role != "kv_consumer"
    )
    by_role, silent = ROLES[role], RequestParams(transfer, ConnectorSettings())
    for said in (None, {}, {"do_remote_decode": False}, {"do_remote_decode": "yes"}):
        assert silent.allowed(said)[2:4] == by_role
    assert silent.allowed(GIVES)[2:5] == (True, by_role[1], True)
    assert silent.allowed(TAKES)[2:4] == (by_role[0], True)
    for way in (True, False):
        told = RequestParams(transfer, ConnectorSettings(hands_over=way, takes_over=way))
        assert {told.allowed(said)[2:4] for said in (None, GIVES, TAKES)} == {(way, way)}


def test_a_decoder_believes_what_was_kept_on_its_own_node_alone():
    params = RequestParams(BOTH, ConnectorSettings(), "here")
    told = params.answer("engine", "request", 300, Kept(HOLD, 256))
    assert (told["do_remote_prefill"], told["do_remote_decode"]) == (True, False)
    assert params.allowed(told) == Allowed(True, True, takes_over=True, kept=Kept(HOLD, 256))
    other = RequestParams(BOTH, ConnectorSettings(), "there")
    assert other.allowed(told) == Allowed(True, True, takes_over=True)
