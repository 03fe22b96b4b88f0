"""Metrics, statistics and KV events in vLLM's terms."""
