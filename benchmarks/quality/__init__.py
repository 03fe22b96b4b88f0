"""What lossy serdes do to a model's answers: ``python -m benchmarks.quality``.

A trained model reads a prefix; the KV of the prefix goes through a serde, chunk by chunk, and
the model goes on with what comes back. What it then expects is compared with what it expects
after the same KV in bfloat16, untouched.
"""
