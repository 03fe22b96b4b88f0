"""A channel between peers over TCP."""
