"""Segments of prompts: KV computed alone, and used at any place of its tokens."""
