"""Mooncake's distributed store as a tier: chunks in the memory of many machines."""
