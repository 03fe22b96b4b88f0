"""A plugin as a third party writes it: one adapter that lacks something, one command."""

import sys

from hexkv.plugins import AdapterSpec, CommandSpec, hookimpl
from hexkv.plugins.spec import CONTRACT


def _echo(words):
    sys.stdout.write(" ".join(words))
    return 7


@hookimpl
def hexkv_adapters():
    return [
        AdapterSpec(
            "store",
            "papyrus",
            "chunks on papyrus",
            lambda settings, context: None,
            requires=("no_such_module", "json"),
            hint="pip install papyrus",
            contract=CONTRACT,
        )
    ]


@hookimpl
def hexkv_commands():
    return [
        CommandSpec("echo", "Print the words", _echo),
        CommandSpec("rewind", "Rewind the scroll", _echo, requires=("no_such_module.inner",)),
    ]
