"""Installed plugins: how they are found, and what they offer."""
