"""Observers, telemetries and sinks of events that break their contracts."""
