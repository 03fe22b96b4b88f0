"""The description of an adapter for the framework: the only list of extension points.

pluggy chooses the adapters to build, and never runs while the cache is being read or written: a
hook call costs some thirty plain calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, Protocol, get_args

import pluggy

from hexkv.ports import CONTRACT as CONTRACT
from hexkv.ports import ChunkKey, Clock, FrameFile, HexKVError, PeerAccess

hookspec = pluggy.HookspecMarker("hexkv")
hookimpl = pluggy.HookimplMarker("hexkv")

Kind = Literal[
    "store",
    "memory",
    "policy",
    "serde",
    "checksum",
    "device",
    "wire",
    "node",
    "directory",
    "admin",
    "observe",
    "channel",
    "peers",
    "operate",
    "segments",
]
"""The kinds of adapters. A configuration names all but five: hosts build a ``device``, ``hexkv
serve`` speaks every installed ``wire`` (:mod:`hexkv.adapters.net.server.serving`), ``peers`` opens
the sections `peers` and `directory`, with the adapters that these name, ``operate`` is the
administration of each cache, and an engine has the ``segments`` that are installed."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class SettingError(ValueError):
    """One of an adapter's settings is invalid. Messages name its place in full.

    Args:
        setting: the name of its field.
        problem: the fault, without a value that may be a secret.
    """

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(problem)
        self.setting = setting


@contextmanager
def about(setting: str) -> Iterator[None]:
    """Attribute the errors of a block to one setting.

    For ``__post_init__`` and ``open``.

    Raises:
        SettingError: in place of a ValueError.
        HexKVError: unchanged, but with ``setting`` set.
    """
    wrong: SettingError | None = None
    try:
        yield
    except HexKVError as error:
        error.setting = error.setting or setting
        raise
    except SettingError:
        raise
    except ValueError as error:
        wrong = SettingError(setting, str(error))
    if wrong is not None:  # alone: its cause may quote a secret
        raise wrong


@dataclass(frozen=True, slots=True)
class NoSettings:
    """For adapters without settings."""


@dataclass(frozen=True, slots=True)
class OpenContext:
    """The framework's information for an adapter that it builds, beside its settings."""

    clock: Clock

    name: str = ""
    """The tier's name in the configuration; of a channel, this process's; else empty."""

    budget: int | None = None
    """Bytes that the core will let the tier hold. A store may refuse to exceed it, too."""

    peers: PeerAccess | None = None
    """For stores and directories that query peers; ``None`` if none are configured."""

    passes_on: bool = False
    """True if another process can map the pool's memory, and may take it over: a store's
    memory beside the pool should then be such memory, too (``SupportsHandOver``)."""

    inherited: FrameFile | None = None
    """The memory that a store of this tier's name has passed on in another process."""


Replacing = Literal["folder", "file", "prefix"] | Callable[[Any, str], object]
"""How a setting is replaced to give a store a place of its own.

``folder``: by a new folder below the one that it names; ``file``: by a file of the same name in a
new folder beside it. Both are removed afterwards. ``prefix``: a random word is appended to it. A
function takes the value and a random word, and returns the value to use instead. Frames under a
prefix, or at the place that a function names, are deleted chunk by chunk.
"""

Isolation = Mapping[str, Replacing] | Literal["keys"]
"""The settings that give a store a place of its own: by name, and how each is replaced.

None at all (``{}``): each opening is a place of its own, as in a process's memory. ``"keys"``: no
setting does; every key is moved to a random namespace, and deleted from there.
"""


class RawAccess(Protocol):
    """A store's medium, reached without any method of the store: so damage can be tried.

    Were the store's own methods used, a store that drops a byte on the way in and adds it on
    the way out would test itself and pass.
    """

    def get(self, key: ChunkKey) -> bytes | None:
        """Return the bytes that the medium holds as *key*'s frame, or ``None``."""
        ...

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Make the medium hold *frame* under *key*, in place of any other."""
        ...

    def keys(self) -> set[ChunkKey]:
        """Return every key under which the medium holds a frame.

        Raises:
            StoreError: the medium cannot be listed.
        """
        ...


class BackDoor(RawAccess, Protocol):
    """A :class:`RawAccess` that a check opens and closes."""

    def close(self) -> None:
        """End it; the medium stays unchanged."""
        ...


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """One adapter, described without importing its requirements."""

    kind: Kind

    name: str
    """The word a configuration uses, for instance ``redis``."""

    summary: str
    """One line for ``hexkv adapters`` to print."""

    open: Callable[[Any, OpenContext], object]
    """Build the adapter from an instance of *settings*. Heavy imports happen in here."""

    settings: type = NoSettings
    """A dataclass of plain fields: its names, types and defaults are the settings' schema.

    A ``ValueError`` of its ``__post_init__`` is shown to the user, by the name of the setting if it
    is a :class:`SettingError`. A secret is a
    :class:`~hexkv.plugins.configuration.secret.Secret`; a field with ``repr=False`` is not shown
    either.
    """

    requires: tuple[str, ...] = ()
    """Modules that must be importable, for instance ``("redis",)``."""

    hint: str = ""
    """Advice for a user who lacks them, for instance ``pip install hexkv-redis``."""

    schemes: tuple[str, ...] = ()
    """The beginnings of a URL of the service, for instance ``("redis", "rediss")``.

    The settings then have a field ``url`` or ``address`` that takes such a URL.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Present names of settings by their former ones, which are accepted for one release."""

    contract: int = 0
    """Version of the contracts it was written for: the value of :data:`hexkv.ports.CONTRACT`
    at that time, as a number. Without it the adapter is not built."""

    back_door: Callable[[Any], BackDoor | None] | None = None
    """For ``hexkv check``: opens the medium from the settings, past the adapter."""

    isolate: Isolation | None = None
    """For ``hexkv check``: gives a store a place without data of others.

    ``None``: not known; then the configured place is not checked, unless data may be lost.
    """

    black_box: str = ""
    """For ``hexkv check --black-box``: the module that checks servers of *schemes* from outside.

    Its class ``TestBlackBox`` takes host and port from the ``candidate``'s subject; without
    *schemes* a path, from a URL whose scheme is *kind*. The module is not imported before pytest
    runs it, and the package around it must import none of it.
    """

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.kind not in get_args(Kind):
            raise ValueError(f"{self.name!r}: no adapter is of kind {self.kind!r}")
        if not callable(self.open):
            raise TypeError(f"{self.name!r}: open must be callable")
        settings: object = self.settings
        if not (isinstance(settings, type) and is_dataclass(settings)):
            raise TypeError(f"{self.name!r}: settings must be a dataclass")
        _check_words(self.name, requires=self.requires, schemes=self.schemes)
        _check_isolation(self)
        if type(self.contract) is not int:
            raise TypeError(f"{self.name!r}: contract must be a whole number")
        if self.schemes and not self.url_setting:
            raise TypeError(f"{self.name!r}: schemes need a setting 'url' or 'address'")

    @property
    def url_setting(self) -> str:
        """Return the setting that takes a URL of one of the schemes; empty if there is none."""
        names = {setting.name for setting in fields(self.settings)}
        return next((name for name in ("url", "address") if name in names), "")


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command that a plugin adds to ``hexkv``."""

    name: str
    """The word after ``hexkv``; of a verb of ``hexkv config``, ``config.`` and the verb."""

    summary: str

    run: Callable[[Sequence[str]], int]
    """Takes the arguments after the name, returns the exit code. Heavy imports happen in here."""

    requires: tuple[str, ...] = ()
    hint: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not callable(self.run):
            raise TypeError(f"{self.name!r}: run must be callable")
        _check_words(self.name, requires=self.requires)


def _check_words(name: str, **given: object) -> None:
    """Refuse a text where a tuple of them is meant: each of its letters would be a word."""
    for argument, words in given.items():
        if not isinstance(words, tuple | list) or not all(isinstance(w, str) for w in words):
            raise TypeError(f"{name!r}: {argument} must be a tuple of texts")


def _check_isolation(spec: AdapterSpec) -> None:
    isolate: object = spec.isolate
    if isolate is None or isolate == "keys":
        return
    if not isinstance(isolate, Mapping):
        raise TypeError(f"{spec.name!r}: isolate must be settings by name, or 'keys'")
    names = {setting.name for setting in fields(spec.settings)}
    for name, how in isolate.items():
        if name not in names:
            raise ValueError(f"{spec.name!r}: isolate names {name!r}, which is no setting")
        if how not in ("folder", "file", "prefix") and not callable(how):
            raise ValueError(
                f"{spec.name!r}: isolate replaces {name!r} by {how!r}, not by a"
                " 'folder', a 'file', a 'prefix' or a function"
            )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name: lower case letters, digits, '.', '_' and '-'")


class Hooks:
    """The hooks a plugin may implement."""

    @hookspec
    def hexkv_adapters(self) -> Iterable[AdapterSpec]:  # type: ignore[empty-body]
        """Return the adapters this plugin offers. Called once per discovery."""

    @hookspec
    def hexkv_commands(self) -> Iterable[CommandSpec]:  # type: ignore[empty-body]
        """Return the commands this plugin adds to ``hexkv``. Called once per discovery."""
