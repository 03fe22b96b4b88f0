"""Lookups from the scheduler's process, answered by the workers' engines."""
