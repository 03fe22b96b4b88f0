"""Blending in vLLM, an experiment: a KV connector with a forward pass of its own."""
