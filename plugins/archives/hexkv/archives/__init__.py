"""Archives of frames, written by ``hexkv export`` and read by ``hexkv import``."""
