"""Administration of a running cache from outside."""
