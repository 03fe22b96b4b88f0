"""What channels between peers have in common: their wire, both ends of a connection, and calls."""
