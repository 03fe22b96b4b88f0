"""Segments: KV computed alone, found and loaded at any place of its tokens in a prompt."""
