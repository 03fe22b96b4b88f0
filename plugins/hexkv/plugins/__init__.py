"""Finding, configuring and composing adapters.

Adapter authors need a few names from here: :class:`AdapterSpec`, :class:`CommandSpec`,
:data:`FilePath`, :class:`OpenContext`, :class:`Secret`, :class:`SettingError` and ``hookimpl``.
Programs that embed hexkv use :mod:`hexkv.api`; hosts that need more than the port gives read a
configuration with :func:`hexkv.plugins.config.load` and make an engine of it with
:func:`hexkv.plugins.compose.build`. Those import pydantic, this package does not.
"""

from hexkv.plugins.secret import Secret
from hexkv.plugins.spec import (
    AdapterSpec,
    CommandSpec,
    Hooks,
    Kind,
    NoSettings,
    OpenContext,
    SettingError,
    about,
    hookimpl,
    hookspec,
)
from hexkv.plugins.values import FilePath

__all__ = [
    "AdapterSpec",
    "CommandSpec",
    "FilePath",
    "Hooks",
    "Kind",
    "NoSettings",
    "OpenContext",
    "Secret",
    "SettingError",
    "about",
    "hookimpl",
    "hookspec",
]
