"""The command ``hexkv fleet``."""
