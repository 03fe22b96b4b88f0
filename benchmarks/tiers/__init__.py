"""Tiers and their encodings beside the bare work of their medium."""
