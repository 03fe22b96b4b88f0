"""Metrics, health and KV events of a running cache, over HTTP and ZeroMQ."""
