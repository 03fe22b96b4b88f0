"""Why hexkv is no transfer backend of SGLang's own disaggregation: nobody can register one.

When a release lets others in, this fails, and docs/sglang.md has to say something else.
"""

import pytest
from sglang.srt.arg_groups import choices
from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class


def test_transfer_backends_are_a_closed_list(monkeypatch):
    """Another word for the flag is all that a plugin can add."""
    known = list(choices.DISAGG_TRANSFER_BACKEND_CHOICES)
    monkeypatch.setattr(choices, "DISAGG_TRANSFER_BACKEND_CHOICES", known)
    known.append("hexkv")
    assert {backend.value for backend in TransferBackend} == {
        "mooncake",
        "mori",
        "nixl",
        "ascend",
        "fake",
    }
    with pytest.raises(ValueError, match="hexkv"):
        TransferBackend("hexkv")
    with pytest.raises(ValueError, match=r"(?i)backend"):
        get_kv_class("hexkv", KVClassType.MANAGER)
