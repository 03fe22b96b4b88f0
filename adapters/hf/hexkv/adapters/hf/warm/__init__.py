"""``hexkv warm`` and ``hexkv tokens``: documents computed before they are requested."""
