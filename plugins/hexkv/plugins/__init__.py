"""Finding, configuring and composing adapters.

Adapter authors need a few names from here: :class:`AdapterSpec`, :class:`CommandSpec`,
:data:`FilePath`, :class:`OpenContext`, :class:`Secret`, :class:`SettingError` and ``hookimpl``.
Programs that embed hexkv use :mod:`hexkv.api`; hosts that need more than the port gives read a
configuration with :func:`hexkv.plugins.configuration.config.load` and make an engine of it with
:func:`hexkv.plugins.composition.compose.build`. Those import pydantic, this package does not.
"""

from hexkv.plugins.configuration.secret import Secret
from hexkv.plugins.configuration.values import FilePath
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
