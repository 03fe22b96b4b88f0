"""Requests and their answers over a connection: the handshake before them, and their numbers."""
