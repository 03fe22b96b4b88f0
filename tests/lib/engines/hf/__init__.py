"""Small models of transformers of every class, and prompts for them."""
