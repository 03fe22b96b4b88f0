"""Servers of the tests' own, and stores over them."""

from servers.lm_fixtures import key, open_store, registry, server, shared_server, soon  # noqa: F401
