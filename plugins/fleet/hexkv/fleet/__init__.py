"""Administration of every node of a fleet from one place."""
