"""The contract kit: the tests that every adapter must pass.

An adapter's test file is this long::

    from hexkv.contracts.plugin import PluginContract
    from hexkv.contracts.store import StoreContract


    class TestTapePlugin(PluginContract):
        entry_point = "tape"


    class TestTapeStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path): ...

        @pytest.fixture
        def raw(self, tmp_path): ...

This module imports nothing, so that pytest can rewrite the kit's assertions before any of
it is loaded.
"""
