"""The contract kit: what every adapter must pass."""
