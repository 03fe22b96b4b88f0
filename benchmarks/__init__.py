"""How near hexkv comes to what the machine itself can do. ``python -m benchmarks``."""
