"""The commands ``hexkv plan``, ``hexkv report`` and ``hexkv size``."""
