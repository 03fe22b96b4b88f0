"""Archives of frames: what ``hexkv export`` writes and ``hexkv import`` reads."""
