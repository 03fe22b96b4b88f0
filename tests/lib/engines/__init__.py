"""Real serving engines and doubles of them."""
