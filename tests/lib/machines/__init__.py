"""Machines of a test: network namespaces, ranks and crowds of processes."""
