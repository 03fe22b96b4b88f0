"""A plugin that offers what hexkv offers itself."""

from hexkv.plugins import AdapterSpec, hookimpl


@hookimpl
def hexkv_adapters():
    return [AdapterSpec("policy", "lru", "another one", lambda settings, context: None)]
