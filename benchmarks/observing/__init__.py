"""The cost of being observed: records of calls, KV events, telemetry."""
