"""Lanes, priorities, deadlines, breakers: how the core does I/O."""
