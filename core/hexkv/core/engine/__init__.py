"""The cache by tokens: naming, one stack of tiers, administration, explanations."""
