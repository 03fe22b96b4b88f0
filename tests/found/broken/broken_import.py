"""A plugin module that cannot be imported."""

raise RuntimeError("this plugin does not load")
