"""``hexkv warm`` and ``hexkv tokens``: documents computed before anybody asks for them."""
