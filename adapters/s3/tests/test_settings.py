import dataclasses
import json
import re
from pathlib import Path

import pytest

from hexkv.adapters.s3.address import Endpoint, Location
from hexkv.adapters.s3.plugin import S3Settings, hexkv_adapters
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.cases import each
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.ports import ConfigError

MIB = 1 << 20
KEY = chunk_key("a")


def test_objects_are_called_by_their_key_in_hexadecimal_below_the_prefix():
    location = Location.parse("s3://cache/of a/team/")
    assert location == Location("cache", "of a/team/")
    assert location.name(KEY) == f"of a/team/{KEY.hex()}"
    assert location.key(location.name(KEY)) == KEY
    assert Location.parse("s3://cache").name(KEY) == KEY.hex()


@each(
    "name",
    [
        "",
        "of a/team",
        f"other/{KEY.hex()}",
        f"p/{KEY.hex().upper()}",
        f"p/{KEY.hex()}0",
        f"p/{KEY.hex()[:-2]}",
    ],
)
def test_what_is_called_otherwise_is_no_chunk(name):
    assert Location("cache", "p/").key(name) is None


@each(
    ("endpoint", "by_path", "meant"),
    [
        ("", None, ("cache.s3.eu-west-1.amazonaws.com", 443, True, "/p%20q/x")),
        ("", True, ("s3.eu-west-1.amazonaws.com", 443, True, "/cache/p%20q/x")),
        ("http://10.0.0.1:9000", None, ("10.0.0.1:9000", 9000, False, "/cache/p%20q/x")),
        ("https://minio/", False, ("cache.minio", 443, True, "/p%20q/x")),
        ("http://[::1]:80", None, ("[::1]", 80, False, "/cache/p%20q/x")),
    ],
)
def test_an_endpoint_and_a_bucket_make_an_address(endpoint, by_path, meant):
    made = Endpoint.of(Location("cache", "p q/"), endpoint, "eu-west-1", by_path=by_path)
    assert (made.authority, made.port, made.tls, made.path("p q/x")) == meant


def test_a_bucket_with_dots_is_asked_for_by_path_since_no_certificate_covers_its_host():
    made = Endpoint.of(Location("a.b.c", ""), "", "us-east-1", by_path=None)
    assert (made.host, made.root) == ("s3.us-east-1.amazonaws.com", "/a.b.c/")


@each(
    "url",
    ["cache", "http://cache", "s3://", "s3://ab", "s3://-cache", "s3://cache?x=1", "s3://cache/a//b",
     "s3://cache/../a", "s3://cache/a/./b", "s3://cache/a\x7fb", "s3://cache/" + 600 * "x"],
)  # fmt: skip
def test_a_url_that_says_something_else_is_refused(url):
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence differs
        S3Settings(url)


def test_keys_in_a_url_are_refused_without_repeating_them():
    with pytest.raises(ValueError, match="there are settings for them") as caught:
        S3Settings("s3://AKID:hunter2@cache")
    assert "hunter2" not in str(caught.value)


@each(
    "settings",
    [
        {"endpoint": "minio:9000"},
        {"endpoint": "http://minio/path"},
        {"endpoint": "http://user@minio"},
        {"endpoint": "http://minio:99999"},
        {"region": "Somewhere/else"},
        {"access_key": "AKID"},
        {"secret_key": "hunter2"},
        {"session_token": "hunter3"},
        {"access_key": "AKID\r\nX: y", "secret_key": "hunter2"},
        {"endpoint": "http://minio", "tls_ca": "ca.pem"},
        {"connections": 0},
        {"connect_timeout": 0.0},
        {"part_size": MIB},
        {"multipart_threshold": 6 * MIB},
        {"present_ttl": -1.0},
        {"absent_ttl": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    (spec,) = hexkv_adapters()
    with pytest.raises(ConfigError, match=r"s3\.\w+: "):
        parse_settings(spec, {"url": "s3://cache"} | settings)


def test_the_readme_lists_every_setting_and_its_default():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \|", text, flags=re.MULTILINE)
    required = dataclasses.MISSING
    assert rows == [
        (
            field.name,
            "required" if field.default is required else json.dumps(field.default, default=str),
        )
        for field in dataclasses.fields(S3Settings)
    ]
