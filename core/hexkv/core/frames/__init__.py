"""How a chunk is written outside memory, and how damage is found."""
