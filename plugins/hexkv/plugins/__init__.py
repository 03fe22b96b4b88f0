"""How adapters are found, configured and put together.

Adapter authors need a few names from here: :class:`AdapterSpec`, :class:`CommandSpec`,
:class:`OpenContext` and ``hookimpl``.
"""

from hexkv.plugins.spec import (
    AdapterSpec,
    CommandSpec,
    Hooks,
    Kind,
    NoSettings,
    OpenContext,
    hookimpl,
    hookspec,
)

__all__ = [
    "AdapterSpec",
    "CommandSpec",
    "Hooks",
    "Kind",
    "NoSettings",
    "OpenContext",
    "hookimpl",
    "hookspec",
]
