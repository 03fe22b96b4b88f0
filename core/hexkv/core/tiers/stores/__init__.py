"""The calls of stores, serdes and policies: checked answers, faults and speeds."""
