"""The index of a tier: its chunks, bytes, pins, tenants, deletions and history."""
