"""Reads of chunks from tiers into memory."""
