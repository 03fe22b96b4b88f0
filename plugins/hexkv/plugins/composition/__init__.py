"""The composition root: from a configuration to an engine or a server."""
