"""Chunks lent to peers, fetched from them and pushed to them."""
