"""The store contract under faults, damage and late calls."""
