"""Tokens packed, cut and hashed into the keys of chunks."""
