"""Stores that break what they keep, name, list or clear."""
