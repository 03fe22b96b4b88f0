"""What requests may say about themselves, and what becomes of nonsense."""

import logging
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.vllm.reading import RequestParams
from hexkv.adapters.vllm.settings import ConnectorSettings

BOTH = SimpleNamespace(is_kv_consumer=True, is_kv_producer=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["read", "write", "x"]), inner),
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
                and said.keys() <= {"read", "write"}
                and all(isinstance(value, bool) for value in said.values())
            )
            both = said or {}
            expected = (both.get("read", True), both.get("write", True)) if sound else (False,) * 2
            assert params.allowed({"hexkv": said, "do_remote_prefill": True}) == expected
    finally:
        log.removeHandler(handler)
    texts = [record.getMessage() for record in records]
    assert len(texts) == len(set(texts)) <= 20, "each kind once"
    assert params.allowed(None) == params.allowed([1]) == (True, True)


def test_a_request_gets_no_more_than_the_connector_s_settings_and_role():
    params = RequestParams(SimpleNamespace(is_kv_consumer=False, is_kv_producer=True),
                           ConnectorSettings(write=False))  # fmt: skip
    assert params.allowed({"hexkv": {"read": True, "write": True}}) == (False, False)
