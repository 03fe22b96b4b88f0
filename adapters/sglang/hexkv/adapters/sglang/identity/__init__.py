"""What KV depends on: arguments, files, LoRA adapters and weights."""
