"""Writes of chunks to tiers, their admission and removal."""
