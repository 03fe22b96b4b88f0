"""Settings, and what KV depends on in a vLLM configuration."""
