"""The contracts that the store and the plugin keep, against a real server process."""

import pytest

from hexkv.contracts.plugin import PluginContract
from servers.lm_contract import OverTheWire, breakable  # noqa: F401
from servers.lm_servers import RawLM


# The wire is that of the LM server's own tests but for its commands; test_wire.py has those.
@pytest.mark.thorough
class TestLMStore(OverTheWire):
    kind = "lm"
    back_door = RawLM


class TestPlugin(PluginContract):
    entry_point = "lmcache"
