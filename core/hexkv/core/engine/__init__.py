"""The cache by tokens: naming of chunks, one stack of tiers, administration, explanations."""
