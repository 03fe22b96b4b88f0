"""The common parts of channels between peers: their wire, both ends of a connection, and calls."""
