"""The operator's side: administration, health, metrics, traces, records and the life cycle."""
