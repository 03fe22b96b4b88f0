"""Nodes, channels, directories and ranks that break their contracts."""
