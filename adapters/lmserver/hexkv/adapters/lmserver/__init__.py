"""A server for chunks that hosts share, and stores that talk to it over TCP."""
