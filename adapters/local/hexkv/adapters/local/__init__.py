"""Host memory and local disk as tiers. Standard library only."""
