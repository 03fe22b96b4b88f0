"""Windows and memory that stand for a device's, and what was queued on it."""
