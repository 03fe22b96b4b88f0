"""Caches of prefixes, chunks and segments, and what names their chunks."""
