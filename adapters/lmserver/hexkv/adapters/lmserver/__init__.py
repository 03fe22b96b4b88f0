"""A server for chunks that hosts share, and stores that use it over TCP."""
