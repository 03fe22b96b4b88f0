"""KV on a GPU beside what its bus and its memory can do: ``python -m benchmarks.gpu``."""
