"""Metrics and reports of a running cache."""
