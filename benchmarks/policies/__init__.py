"""Which chunks stay, replayed on traces: eviction, writing, compressed tiers."""
