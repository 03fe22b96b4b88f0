"""The network layer that adapters share: streams with deadlines, TLS, connection pools."""
