"""A process that owns one pool and its tiers, and the client by which engines share them."""
