"""What hexkv wraps of SGLang's classes: what no extension point tells, and nothing else.

SGLang calls :func:`install` in every process as it starts it (its plugin group
``sglang.srt.plugins``), before models and LoRA adapters are loaded. It is called once more when a
backend is opened, should the plugin have been switched off (``SGLANG_PLUGINS``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

Plain = Callable[..., object]
_MARK = "hexkv_plain"


def install() -> None:
    """Wrap everything that is imported by now. Nothing is imported for it: again costs little."""
    from hexkv.adapters.sglang import lora, updates

    updates.watch()
    lora.watch()


def wrap(module: str, name: str, method: str, around: Callable[[Plain], Plain]) -> bool:
    """Put ``around(method)`` in the place of a method, once. True if it is there.

    Args:
        module: that defines the class, if it was imported.
        name: of the class.
        method: that the class defines itself.
        around: makes the new method of the old one.
    """
    owner = getattr(sys.modules.get(module), name, None)
    plain = vars(owner).get(method) if owner is not None else None
    if plain is None:
        return False
    if not hasattr(plain, _MARK):
        wrapped = around(plain)
        setattr(wrapped, _MARK, plain)
        setattr(owner, method, wrapped)
    return True
