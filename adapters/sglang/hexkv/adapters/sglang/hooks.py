"""What hexkv wraps of SGLang's classes: what no extension point tells, and nothing else.

SGLang calls :func:`install` in every process as it starts it (its plugin group
``sglang.srt.plugins``), before models and LoRA adapters are loaded. It is called once more when a
backend is opened, should the plugin have been switched off (``SGLANG_PLUGINS``).
"""

from __future__ import annotations

from hexkv.adapters.sglang import lora, weights


def install() -> None:
    """Wrap everything that is imported by now. Nothing is imported for it: again costs little."""
    weights.watch()
    lora.watch()
