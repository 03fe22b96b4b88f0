"""A plugin that says hello, as some clients do, where a program expects JSON."""

from hexkv.plugins import AdapterSpec, hookimpl
from hexkv.plugins.spec import CONTRACT

print("hello from the import")  # noqa: T201


@hookimpl
def hexkv_adapters():
    print("hello from the hook")  # noqa: T201
    return [
        AdapterSpec("store", "noise", "loud", lambda settings, context: None, contract=CONTRACT)
    ]
