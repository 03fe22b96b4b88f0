"""Common parts for authors of adapters."""
