"""Addresses are read as they are printed, and a secret before a host is not repeated."""

import pytest

from hexkv.adapters.net.address import Address
from hexkv.contracts.kit.cases import each


@each(
    ("text", "port", "meant"),
    [
        ("cache:1", None, Address("cache", 1)),
        ("cache", 6379, Address("cache", 6379)),
        ("[::1]:7000", None, Address("::1", 7000)),
        ("[::1]", 7000, Address("::1", 7000)),
    ],
)
def test_an_address_is_read_and_printed(text, port, meant):
    assert Address.parse(text, port) == meant
    assert Address.parse(str(meant)) == meant
    assert Address.of_url(f"hexkv://{meant}/", "hexkv") == meant


@each("text", ["", "cache", ":1", "cache:port", "cache:0", "cache:65536", "user@cache:1", "a/b:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence differs
        Address.parse(text)
    with pytest.raises(ValueError, match="hexkv://host:port"):
        Address.of_url(text, "hexkv")


def test_what_stands_before_a_host_is_a_secret_and_is_not_repeated():
    for text in ("user:hush@cache:1", "hush@cache"):
        with pytest.raises(ValueError, match="no password") as raised:
            Address.of_url(f"hexkv://{text}", "hexkv")
        assert "hush" not in str(raised.value)
