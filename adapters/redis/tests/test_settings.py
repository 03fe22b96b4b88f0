import dataclasses
import json
import re
from pathlib import Path

import pytest

from hexkv.adapters.net.address import Address
from hexkv.adapters.redis.address import Location
from hexkv.adapters.redis.plugin import RedisSettings
from hexkv.contracts.kit.cases import each


@each(
    ("url", "meant"),
    [
        ("redis://cache", Location(Address("cache", 6379), 0, False)),
        ("redis://10.0.0.1:7000/3", Location(Address("10.0.0.1", 7000), 3, False)),
        ("rediss://[::1]:7000/", Location(Address("::1", 7000), 0, True)),
        ("unix:///run/a%20b", Location(Address(path="/run/a b"), 0, False)),
        ("unix:///run/redis?db=2", Location(Address(path="/run/redis"), 2, False)),
    ],
)
def test_a_url_says_where_and_which_database(url, meant):
    assert Location.parse(url) == meant


@each(
    "url",
    [
        "cache:6379",
        "http://cache",
        "redis://",
        "redis://:6379",
        "redis://cache:port",
        "redis://cache:99999",
        "redis://cache/one",
        "redis://cache/-1",
        "redis://cache?db=1",
        "unix://relative/path",
        "unix:relative/path",
        "unix:///path?database=1",
    ],
)
def test_a_url_that_says_something_else_is_refused(url):
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence differs
        RedisSettings(url)


def test_a_password_in_a_url_is_refused_without_repeating_it():
    with pytest.raises(ValueError, match="there are settings for them") as caught:
        RedisSettings("redis://user:hunter2@cache")
    assert "hunter2" not in str(caught.value)


@each(
    "settings",
    [
        {"others": ("cache:7001",)},
        {"topology": "cluster", "others": ("user@cache",)},
        {"topology": "cluster", "url": "redis://cache/1"},
        {"topology": "sentinel", "url": "unix:///run/sentinel"},
        {"tls_key": "client.key", "url": "rediss://cache"},
        {"tls_ca": "ca.pem"},
        {"ttl": 0.0},
        {"ttl": float("nan")},
        {"connect_timeout": 0.0},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings):
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence differs
        RedisSettings(**settings)


def test_the_readme_lists_every_setting_and_its_default():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, flags=re.MULTILINE)
    assert rows == [
        (field.name, json.dumps(field.default, default=str))
        for field in dataclasses.fields(RedisSettings)
    ]
