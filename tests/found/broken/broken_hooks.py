"""Plugins that load, and fail when they are asked what they offer."""

from hexkv.plugins import AdapterSpec, CommandSpec, hookimpl


def spec(name, **changes):
    return AdapterSpec("store", name, "never offered", lambda settings, context: None, **changes)


class raising:  # noqa: N801 - entry points name it
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        raise ZeroDivisionError


class wrong_type:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        return ["a word"]


class bad_spec:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        return [spec("unconfigurable", settings=int)]


class typo:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapterz():
        return [spec("misspelt")]


class halfway:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        yield spec("first-half")
        raise OSError("no second half")


class no_list:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        return 5


class bad_command:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        return [spec("beside-a-bad-command")]

    @staticmethod
    @hookimpl
    def hexkv_commands():
        return [CommandSpec("Not A Word", "", lambda words: 0)]


class no_hooks:  # noqa: N801
    """A module of anything, for instance the one that has the store."""


class forgotten:  # noqa: N801
    @staticmethod
    def hexkv_adapters():
        return [spec("unmarked")]


class half_forgotten:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_commands():
        return []

    @staticmethod
    def hexkv_adapters():
        return [spec("unmarked-too")]


class no_return:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        [spec("not-returned")]


class no_instance:  # noqa: N801
    @hookimpl
    def hexkv_adapters(self):
        return [spec("of-an-instance")]


class letters:  # noqa: N801
    @staticmethod
    @hookimpl
    def hexkv_adapters():
        return [spec("spelt", requires="redis")]
