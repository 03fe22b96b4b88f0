"""A channel between peers by NIXL."""
