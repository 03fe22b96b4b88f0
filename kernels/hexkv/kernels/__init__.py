"""Moving KV between paged and contiguous memory. Needs torch."""
