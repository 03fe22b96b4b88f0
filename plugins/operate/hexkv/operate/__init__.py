"""Administration of a running cache: the verbs of operators, by key, over its tiers."""
