"""The contracts that the store and the plugin keep, against a real server process."""

from hexkv.contracts.plugin import PluginContract
from lm_contract import OverTheWire, breakable  # noqa: F401
from lm_servers import RawLM


class TestLMStore(OverTheWire):
    kind = "lm"
    back_door = RawLM


class TestPlugin(PluginContract):
    entry_point = "lmcache"
