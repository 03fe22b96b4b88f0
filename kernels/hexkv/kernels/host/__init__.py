"""Memory that the host reaches: copies of many chunks in few calls of NumPy and torch."""
