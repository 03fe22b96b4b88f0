"""Operators' selections, moves and explanations of chunks."""
