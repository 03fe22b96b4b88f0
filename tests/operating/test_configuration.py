"""Every key of every schema, given whatever somebody may write: an error that names the key."""

import math
import re
from dataclasses import fields

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.kit.cases import each
from hexkv.plugins.composition.checking import check
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import Loaded, load
from hexkv.plugins.configuration.places import render
from hexkv.plugins.configuration.schema import EngineSettings, Section
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import ConfigError, DType, HexKVError, KVLayout, Namespace, StoreBusy

REGISTRY = discover()
TOY = Namespace("toy", KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8))

NEEDED = {"store": "memory", "name": "n", "salt": "s", "root": "r", "url": "s3://bucket"}
"""What a section must have beside the key that is wrong."""

ODD = [None, True, 0, -1, 2**70, -(2**70), 10**4000, math.nan, math.inf, -0.0, 1e300, "", "a\0b"]
ODD += ["\ud800", "1:30", "8 GiBs", b"x", {1}, object(), 1j, range(3), {1: 2}, [[]], {"": {}}, "@"]
WRONG = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def keys(section, path=()):
    """Every key of a schema, those of sections within it, too."""
    for name, field in section.model_fields.items():
        yield (*path, name)
        inner = [section for section in sections(field.annotation) if issubclass(section, Section)]
        listed = (0,) if "tuple" in str(field.annotation) else ()
        for below in inner:
            yield from keys(below, (*path, name, *listed))


def sections(annotation):
    inner = [found for part in getattr(annotation, "__args__", ()) for found in sections(part)]
    return inner or ([annotation] if isinstance(annotation, type) else [])


def within(path, value):
    """A configuration that says *value* at *path*, and what must be said beside it."""
    for at in range(len(path) - 1, -1, -1):
        if path[at] == 0:
            value = [value]
        elif path[:1] in (("tiers",), ("tenants",)) and at == 2:
            beside = ("store",) if path[0] == "tiers" else ("name", "salt")
            value = {name: NEEDED[name] for name in beside} | {path[at]: value}
        else:
            value = {path[at]: value}
    return value


KEYS = sorted(set(keys(EngineSettings)), key=str)


def test_the_walk_goes_through_the_whole_schema():
    assert {("tiers", 0, "breaker", "pause"), ("tenants", 0, "salt"), ("model", "extra")} <= {*KEYS}


@settings(max_examples=400)
@given(st.sampled_from(KEYS), WRONG)
@example(("tiers", 0, "breaker", "longest_pause"), 0.5)
def test_any_value_of_any_key_is_taken_or_refused_by_its_name(path, value):
    try:
        check(load(None, {}, within(path, value)), REGISTRY)
    except ConfigError as error:
        said, (*section, name) = str(error), path
        # Of two that do not go together either may be named, and the other is in the text.
        beside = section and render(section) in said and re.search(rf"\b{name}\b", said)
        assert render(path) in said or beside


SPECS = [spec for spec in REGISTRY.adapters.values() if fields(spec.settings)]
SETTINGS = [(spec, field.name) for spec in SPECS for field in fields(spec.settings)]


@settings(max_examples=400)
@given(st.sampled_from(SETTINGS), WRONG)
def test_any_value_of_any_setting_is_taken_or_refused_by_its_name(setting, value):
    spec, name = setting
    beside = {f.name: NEEDED[f.name] for f in fields(spec.settings) if f.name == "root"}
    if spec.kind == "admin":
        beside["address"] = "/run/hexkv/admin.sock"
    elif spec.schemes:
        host = "bucket" if spec.name in ("s3", "obstore") else "127.0.0.1:7"
        beside[spec.url_setting] = f"{spec.schemes[0]}://{host}"
    try:
        REGISTRY.parse(spec.kind, spec.name, beside | {name: value})
    except ConfigError as error:
        said = str(error)
        # Of two that do not go together either may be named, and the other is in the text.
        assert re.search(rf"\b{name}\b", said)
        assert said.startswith(f"{spec.name}.")


@settings(max_examples=60)
@given(st.text())
def test_any_name_of_a_root_opens_or_is_an_error_of_the_tree(tmp_path_factory, name):
    root = f"{tmp_path_factory.getbasetemp()}/roots/{name.replace('/', '-').strip('.')}"
    try:
        DiskStore(root).close()
    except HexKVError as error:
        assert str(error)  # noqa: PT017 - either is fine, nothing else is


@each(
    ("settings", "setting", "kind"),
    [
        ({"root": "{root}/file"}, "root", ConfigError),
        ({"root": "{root}/taken"}, "root", StoreBusy),
        ({"root": "{root}/linked"}, "root", ConfigError),
    ],
)
def test_what_cannot_be_opened_is_named_by_its_setting(tmp_path, settings, setting, kind):
    (tmp_path / "file").touch()
    (tmp_path / "linked").mkdir(exist_ok=True)
    if not (tmp_path / "linked/a1").is_symlink():
        (tmp_path / "linked/a1").symlink_to(tmp_path)
    given = {name: value.format(root=tmp_path) for name, value in settings.items()}
    tiers = [{"store": "memory"}, {"store": "disk", "settings": given}]
    loaded = load(None, {}, {"chunk": {"size": 16}, "pool": {"bytes": "1MiB"}, "tiers": tiers})
    assert isinstance(loaded, Loaded)
    other = DiskStore(tmp_path / "taken", exclusive=True)
    try:
        with pytest.raises(kind, match=rf"^tiers\[1\]\.settings\.{setting} \(from code\): /"):
            build(loaded, TOY)
    finally:
        other.close()
