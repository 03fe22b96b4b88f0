"""Chunks lent to peers and fetched from them."""
