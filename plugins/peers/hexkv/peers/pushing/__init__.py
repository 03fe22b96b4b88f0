"""Chunks that are being computed: announced, expected, and pushed to peers."""
