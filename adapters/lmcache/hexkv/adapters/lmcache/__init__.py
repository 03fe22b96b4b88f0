"""LMCache's ``lm://`` wire in both directions, and the checks of servers that speak it."""
