"""Directories for hexkv: an embedded one, served by a process, and a static one without any."""
