"""What an adapter may say about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.plugins import AdapterSpec, CommandSpec, OpenContext
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.tiers import parse_adapter
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.discovery.registry import Origin, Registry
from hexkv.plugins.spec import CONTRACT
from hexkv.ports import AdapterUnavailable, ConfigError

CONTEXT = OpenContext(SystemClock())


@dataclass(frozen=True)
class Settings:
    path: str
    fsync: bool = True
    retries: int = 3
    hosts: tuple[str, ...] = ()
    seconds: float = 1.0
    password: str = field(default="", repr=False)

    def __post_init__(self):
        if self.retries < 0:
            raise ValueError("retries must not be negative")


@dataclass(frozen=True)
class Texts:
    text: str = ""
    secret: Secret = NO_SECRET
    perhaps: str | None = None
    folder: Path = Path()
    others: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    mode: Literal["on", "off"] = "on"
    file: FilePath = ""
    number: int = 0
    either: str | int = 0


def offering(**changes):
    """A registry with one store, whose ``open`` gives back what it got."""
    opened = []

    def open_it(settings, context):
        opened.append(settings)
        return object()

    given = {"settings": Settings, "open": open_it} | changes
    registry = Registry()
    registry.offer(
        Origin("plug", "plug-dist 1.0"),
        [AdapterSpec(kind="store", name="shelf", summary="", **{"contract": CONTRACT, **given})],
    )
    return registry, opened


@each("name", ["", "Upper", "two words", "-dash", "a" * 65, "ü"])
def test_names_are_words_that_a_configuration_can_hold(name):
    with pytest.raises(ValueError, match="is no name"):
        AdapterSpec("store", name, "", lambda s, c: None)
    with pytest.raises(ValueError, match="is no name"):
        CommandSpec(name, "", lambda words: 0)


def test_a_spec_that_could_never_be_opened_is_refused():
    with pytest.raises(ValueError, match="no adapter is of kind 'shop'"):
        AdapterSpec("shop", "a", "", lambda s, c: None)
    with pytest.raises(TypeError, match="open must be callable"):
        AdapterSpec("store", "a", "", None)
    with pytest.raises(TypeError, match="settings must be a dataclass"):
        AdapterSpec("store", "a", "", lambda s, c: None, settings=dict)
    with pytest.raises(TypeError, match="schemes need a setting 'url' or 'address'"):
        AdapterSpec("store", "a", "", lambda s, c: None, Settings, schemes=("shelf",))
    with pytest.raises(TypeError, match="schemes must be a tuple of texts"):
        AdapterSpec("store", "a", "", lambda s, c: None, schemes="shelf")
    with pytest.raises(TypeError, match="contract must be a whole number"):
        AdapterSpec("store", "a", "", lambda s, c: None, contract="1")
    with pytest.raises(TypeError, match="run must be callable"):
        CommandSpec("a", "", None)


def test_an_unknown_adapter_is_answered_with_the_nearest_and_all_installed():
    registry, _ = offering()
    with pytest.raises(
        ConfigError, match=r"no store adapter 'shelv', did you mean 'shelf'\? installed: shelf$"
    ):
        registry.open("store", "shelv", {}, CONTEXT)
    with pytest.raises(ConfigError, match=r"no serde adapter 'zip'; installed: none$"):
        registry.open("serde", "zip", {}, CONTEXT)


def test_a_missing_requirement_says_what_to_do_and_opens_nothing():
    registry, opened = offering(requires=("json", "no_such_module"), hint="pip install it")
    with pytest.raises(AdapterUnavailable, match=r"needs no_such_module \(pip install it\)"):
        registry.open("store", "shelf", {"path": "/x"}, CONTEXT)
    assert not opened


def test_settings_arrive_as_the_adapters_dataclass():
    registry, _ = offering()
    parsed = registry.parse("store", "shelf", {"path": "/x", "hosts": ["a", "b"], "seconds": 2})
    assert parsed == Settings(path="/x", hosts=("a", "b"), seconds=2.0)


@each(
    ("settings", "message"),
    [
        ({}, r"shelf\.path: missing"),
        ({"path": 1}, r"shelf\.path: should be a text"),
        ({"path": "x", "retries": "3"}, r"shelf\.retries: should be a whole number"),
        ({"path": "x", "retries": True}, r"shelf\.retries: should be a whole number"),
        ({"path": "x", "fsync": "yes"}, r"shelf\.fsync: should be true or false"),
        ({"path": "x", "hosts": [1]}, r"shelf\.hosts\.0: should be a text"),
        ({"path": "x", "retries": -1}, r"shelf: retries must not be negative"),
        ({"path": "x", "fsnc": 1}, r"shelf\.fsnc: unknown key, did you mean 'fsync'\? known: pa"),
        ({"path": object()}, r"shelf\.path: a configuration holds no object"),
    ],
)
def test_a_bad_setting_is_named(settings, message):
    registry, opened = offering()
    with pytest.raises(ConfigError, match=message):
        registry.open("store", "shelf", settings, CONTEXT)
    assert not opened


def from_environment(**values):
    """The settings of a tier on a shelf of texts, each given by a variable."""
    registry, _ = offering(settings=Texts)
    environ = {f"HEXKV_TIERS__0__SETTINGS__{name.upper()}": value for name, value in values.items()}
    loaded = load(None, {"HEXKV_TIERS__0__STORE": "shelf"} | environ)
    given, place = loaded.settings.tiers[0].settings, ("tiers", 0, "settings")
    return parse_adapter(loaded, registry, "store", "shelf", given, place)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12))
def test_text_of_the_environment_reaches_an_adapter_as_it_is(text):
    found = from_environment(text=text, secret=text, perhaps=text, labels__one=text, folder=text)
    assert (found.text, found.perhaps, found.secret.reveal()) == (text, text, text)
    assert (found.labels, found.folder) == ({"one": text}, Path(text))


def test_other_settings_of_the_environment_are_yaml():
    found = from_environment(others="[a, 'b']", mode="off", number="0x10", either="7")
    assert (found.others, found.mode, found.number, found.either) == (("a", "b"), "off", 16, 7)
    with pytest.raises(ConfigError, match=r"env HEXKV_TIERS__0__SETTINGS__NUMBER:1: "):
        from_environment(number="@")
    with pytest.raises(ConfigError, match=r"settings\.nmber \(from env .*unknown key.*'number'"):
        from_environment(nmber="@")


def test_a_tilde_in_a_setting_that_names_a_file_is_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/its/home")
    found = from_environment(file="~/a", text="~/a", secret="~")
    assert (found.file, found.text, found.secret.reveal()) == ("/its/home/a", "~/a", "~")
    assert from_environment(file="./~").file == "./~"
    with pytest.raises(ConfigError, match=r"settings\.file \(from env .*no home directory"):
        from_environment(file="~no-such-user/a")


class Half:
    """A store without some of its methods."""

    delete = None

    def read(self, keys, sink, deadline): ...
    def contains(self, keys, deadline): ...
    def close(self): ...


class Whole(Half):
    def delete(self, keys, deadline): ...
    def write(self, items, deadline): ...


def raising(error):
    raise error


@each(
    ("open_it", "message"),
    [
        (lambda s, c: object(), "built a object, which is no ChunkStore: it lacks close, contains"),
        (lambda s, c: Half(), r"built a Half, which is no ChunkStore: it lacks delete, write$"),
        (lambda s, c: None, "built a NoneType"),
        (lambda s, c: Whole, r"built the class Whole, not an instance of it$"),
        (lambda s, c: raising(OSError("no\nroom")), r"cannot be opened: OSError: no room$"),
        (lambda s, c: raising(SystemExit(3)), r"cannot be opened: SystemExit: 3$"),
        (lambda s, c: raising(ConfigError("no such file")), r"no such file$"),
    ],
)
def test_an_adapter_that_cannot_be_built_is_found_out(open_it, message):
    registry, _ = offering(open=open_it)
    with pytest.raises(ConfigError, match=message) as raised:
        registry.open("store", "shelf", {"path": "x"}, CONTEXT)
    said = str(raised.value)
    assert (
        said.startswith("store adapter 'shelf' of plug (plug-dist 1.0) ") or said == "no such file"
    )


def test_an_adapter_of_other_contracts_is_not_built_and_stops_nobody_who_did_not_ask(caplog):
    for contract in (0, CONTRACT - 1, CONTRACT + 1):
        registry, opened = offering(contract=contract)
        why = f"contract {contract}, and this" if contract else "does not name the contract"
        with pytest.raises(AdapterUnavailable, match=why) as raised:
            registry.open("store", "shelf", {"path": "x"}, CONTEXT)
        assert not opened
        assert list(registry.open_all("store", CONTEXT)) == []
        assert str(raised.value).startswith("adapter 'shelf' is not available: ")
        assert ("a newer hexkv may know it" in str(raised.value)) == (contract > CONTRACT)
    assert caplog.text.count("store adapter shelf is left out: shelf") == 3
