"""Peers that serve, push, lie and die, in this process or in another."""
