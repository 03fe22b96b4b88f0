"""A plugin that two distributions offer under one name."""

from hexkv.plugins import hookimpl


@hookimpl
def hexkv_commands():
    return []
