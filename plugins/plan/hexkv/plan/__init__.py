"""Planning: traces and records replayed through the policies, sizes computed, and reports."""
