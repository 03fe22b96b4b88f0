"""A plugin that offers what hexkv offers itself."""

from hexkv.plugins import AdapterSpec, hookimpl


@hookimpl
def hexkv_adapters():
    return [AdapterSpec("policy", "lru", "another one", lambda settings, context: None)]


class disk:  # noqa: N801 - an entry point names it
    """Claims what a distribution of hexkv's offers, under a name that comes before its name."""

    @staticmethod
    @hookimpl
    def hexkv_adapters():
        def unmade(settings, context):
            raise AssertionError("it is opened in the place of another")

        return [
            AdapterSpec("store", "beside-the-disk", "never offered", unmade),
            AdapterSpec("store", "disk", "another one", unmade),
        ]
