"""The layers of a configuration, and the origin of each value.

Layers are laid over each other, weakest first. Mappings are merged key by key; a list replaces a
list, except that the environment can address one item of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from pathlib import PurePath
from typing import Any, Self

import yaml

from hexkv.plugins.configuration.places import Path, render
from hexkv.plugins.configuration.values import DEEPEST, Value, faults
from hexkv.ports import ConfigError

PREFIX = "HEXKV_"
FILE_VARIABLE = "HEXKV_CONFIG"
_SERVICE_LINK = re.compile(
    r"HEXKV_\w+?_(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)"
)
"""Variables that Kubernetes sets in every container for a service named ``hexkv-*``."""

MAX_FILE_BYTES = 256 * 1024
"""A configuration is written by people; anything larger is some other file."""


class Unread(str):
    """A value of a variable or an option, until its schema decides if it is text or YAML.

    Args:
        text: the value as it is.
        origin: of the value.
    """

    __slots__ = ("origin",)
    origin: str

    def __new__(cls, text: str, origin: str) -> Self:
        made = super().__new__(cls, text)
        made.origin = origin
        return made

    def __reduce__(self) -> tuple[type[Unread], tuple[str, str]]:
        return Unread, (str(self), self.origin)

    def read(self, schema: Schema, words: Sequence[str]) -> Value:
        """Return the value for the place that *words* lead to in *schema*.

        Text is taken as it is, also for a key that *schema* does not know: the message about the
        key is the better one. If *schema* gives no type, the value stays unread.

        Raises:
            ConfigError: the type is not text, and the value is not YAML.
        """
        kinds = _kinds(schema, words)
        if kinds <= {"string", "null"}:
            return str(self)
        return self if _ANYTHING in kinds else parse_yaml(self, self.origin)[0]


Schema = Mapping[str, Any]
"""A JSON schema, as pydantic makes them."""

_ANYTHING = "anything"


def keys_at(schema: Schema, words: Sequence[str]) -> list[str]:
    """Return the keys of the section that *words* lead to in *schema*."""
    return [key for option in _at(schema, words) for key in option.get("properties", ())]


def _kinds(schema: Schema, words: Sequence[str]) -> set[str]:
    """Return the JSON types that a schema allows at the place that *words* lead to."""
    return {str(option.get("type", _ANYTHING)) for option in _at(schema, words)}


def _at(schema: Schema, words: Sequence[str]) -> list[Schema]:
    """Return the parts of a schema at the place that *words* lead to, by alternatives."""
    options = _options(schema, schema)
    for word in words:
        options = [
            option
            for inner in (_inside(option, word) for option in options)
            if inner is not None
            for option in _options(schema, inner)
        ]
    return options


def _options(schema: Schema, part: Schema) -> list[Schema]:
    """Return the alternatives of a part of *schema*, its references followed."""
    if reference := part.get("$ref"):
        return _options(schema, schema["$defs"][reference.rpartition("/")[2]])
    several = [one for word in ("anyOf", "oneOf", "allOf") for one in part.get(word, ())]
    return [option for one in several for option in _options(schema, one)] or [part]


def _inside(part: Schema, word: str) -> Schema | None:
    """Return the schema of the key or position *word* in a part; ``None``: there is none."""
    match part.get("type"):
        case None:
            return {}
        case "array" if (index := _position(word)) is not None:
            first = part.get("prefixItems", ())
            found: Any = first[index] if index < len(first) else part.get("items", {})
        case "object":
            found = part.get("properties", {}).get(word, part.get("additionalProperties"))
        case _:
            return None
    return {} if found is True else found or None


class ConfigLayers:
    """Values of the layers merged so far, and the origin of each."""

    def __init__(self, defaults: dict[str, Value]) -> None:
        self.values = defaults
        self.origins: dict[Path, str] = {}

    def merge(self, values: Mapping[str, Value], origin: Callable[[Path], str]) -> None:
        """Lay a mapping over the present values."""
        self._merge(self.values, values, (), origin)

    def assign(self, words: list[str], value: Value, origin: str) -> None:
        """Set one value, at the place that *words* lead to.

        Raises:
            ConfigError: the way leads through something that is no section and no list.
        """
        node: Value = self.values
        path: Path = ()
        for position, word in enumerate(words):
            part, fresh = self._step(node, path, word, origin)
            path = (*path, part)
            if position == len(words) - 1:
                if isinstance(node, dict):
                    self._merge(node, {word: value}, path[:-1], lambda _: origin)
                else:
                    self._put(node, path, value, lambda _: origin)
                return
            if fresh:
                self._put(node, path, {}, lambda _: origin)
            node = node[part]  # type: ignore[index]  # _step has checked it

    def _step(self, node: Value, path: Path, word: str, origin: str) -> tuple[str | int, bool]:
        """Return the key or index of *word* in *node*, and whether it is a new one."""
        if isinstance(node, dict):
            return word, word not in node
        if not isinstance(node, list):
            raise ConfigError(f"{render(path)} (from {origin}): is a value, not a section")
        index = _position(word)
        if index is None or index > len(node):
            raise ConfigError(
                f"{render(path)} (from {origin}): {word!r} is no position"
                f" in a list of {len(node)}, nor the next one"
            )
        return index, index == len(node)

    def _merge(
        self,
        into: dict[str, Value],
        values: Mapping[str, Value],
        path: Path,
        origin: Callable[[Path], str],
    ) -> None:
        for key, value in values.items():
            place = (*path, key)
            old = into.get(key)
            if isinstance(value, dict) and isinstance(old, dict):
                self.origins[place] = origin(place)
                self._merge(old, value, place, origin)
            else:
                self._put(into, place, value, origin)

    def _put(self, node: Value, path: Path, value: Value, origin: Callable[[Path], str]) -> None:
        """Set a value in its container, and forget the origin of the old one."""
        for stale in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[stale]
        last = path[-1]
        if isinstance(node, dict) and isinstance(last, str):
            node[last] = value
        elif isinstance(node, list) and isinstance(last, int):
            node[last:] = [value, *node[last + 1 :]]
        self._note(value, path, origin)

    def _note(self, value: Value, path: Path, origin: Callable[[Path], str]) -> None:
        self.origins[path] = origin(path)
        if isinstance(value, dict):
            for key, item in value.items():
                self._note(item, (*path, key), origin)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._note(item, (*path, index), origin)


def merge_file(layers: ConfigLayers, path: FilePath) -> None:
    """Lay a YAML file over *layers*.

    Raises:
        ConfigError: it cannot be read, or is not one mapping in plain YAML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a name that no file can have
        raise ConfigError(f"{str(path)!r}: cannot be read: {error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES // 1024} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    value, lines = parse_yaml(text, str(path))
    if value is None:  # nothing but comments
        return
    if not isinstance(value, dict):
        raise ConfigError(f"{path}:1: should be KEY: VALUE lines, not a list or a text")
    layers.merge(value, lambda place: f"{path}:{lines[place]}")


def merge_environment(
    layers: ConfigLayers, environ: Mapping[str, str], schema: Callable[[], Schema]
) -> None:
    """Lay the variables ``HEXKV_*`` over *layers*, ``HEXKV_CONFIG`` excepted.

    ``HEXKV_TIERS__1__SETTINGS__PATH`` is ``tiers[1].settings.path``. A value is taken as it is
    where the schema requires text, read as YAML where it requires another type, and :class:`Unread`
    where it gives none. Variables that Kubernetes adds for services are skipped.

    Raises:
        ConfigError: a name that leads nowhere, or a value that is no YAML.
    """
    found: list[tuple[list[tuple[int, str]], str]] = []
    for name in environ:
        if name.startswith(PREFIX) and name != FILE_VARIABLE and not _is_service_link(name):
            words = name.removeprefix(PREFIX).lower().split("__")
            if not all(words):
                raise ConfigError(f"environment variable {name}: names nothing")
            # Positions in numeric order, so that an eleventh item comes after the tenth.
            order = [(_position(word) or 0, word) for word in words]
            found.append((order, name))
    sections = {tuple(order[:end]) for order, _ in found for end in range(len(order))}
    for order, name in sorted(found):
        origin, words = f"env {name}", [word for _, word in order]
        value = Unread(environ[name], origin).read(schema(), words)
        if isinstance(value, Unread) and tuple(order) in sections:
            value, _ = parse_yaml(value, origin)  # another variable addresses a part of it
        layers.assign(words, value, origin)


def _is_service_link(name: str) -> bool:
    return "__" not in name and _SERVICE_LINK.fullmatch(name) is not None


def _position(word: str) -> int | None:
    """Return the index in a list that *word* represents, if it does."""
    return int(word) if re.fullmatch(r"[0-9]{1,4}", word) else None


def plain(values: Mapping[str, object], source: str) -> dict[str, Value]:
    """Return a program's values in the form of a file's; *source* names them in messages.

    Raises:
        ConfigError: a value in it that a file could not hold.
    """
    given: dict[str, Value] = _plain(values)
    if wrong := [f"{render(path)} (from {source}): {what}" for path, what in faults(given)]:
        raise ConfigError("; ".join(wrong))
    return given


def _plain(value: Any, level: int = 0) -> Any:
    """Return *value* in the form of a file's: paths by their names, and tuples as lists."""
    if isinstance(value, PurePath):
        return str(value)
    if level <= DEEPEST:  # one that contains itself is checked no further, either
        if isinstance(value, Mapping):
            return {key: _plain(item, level + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(item, level + 1) for item in value]
    return value


def parse_yaml(text: str, source: str) -> tuple[Value, dict[Path, int]]:
    """Return the value of one YAML document, and the line of each place in it.

    Plain YAML only: no tags, no aliases (a few lines of them can represent gigabytes), and no key
    twice.

    Raises:
        ConfigError: anything else, with the line.
    """
    lines: dict[Path, int] = {}
    value: Value = None
    wrong = ""
    try:
        loader = yaml.SafeLoader(text)
        if (node := loader.get_single_node()) is not None:
            value = _Walk(loader, source, lines).value(node, ())
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        wrong = f"{line}: {_explained(error)}"
    except yaml.YAMLError as error:
        wrong = f": {error}"
    except RecursionError:
        wrong = ": nested too deeply"
    if wrong:  # after the error, which quotes the line: there may be a secret in it
        raise ConfigError(f"{source}{wrong}")
    return value, lines


def _explained(error: yaml.MarkedYAMLError) -> str:
    """Return YAML's objection to a text, without words of it."""
    detail = error.problem or error.context or ""
    if detail.startswith("mapping values are not allowed"):
        return "a second ': ' in a line: put the text in quotes, or begin a new line"
    for sign, word in (("!", "tag"), ("*", "alias"), ("&", "anchor")):
        if word in detail and "'" in detail:
            return f"{word} that is not known: write what begins with {sign} in quotes"
    return detail


_OCTAL = re.compile(r"[-+]?0[0-7_]+")


class _Walk:
    """Turns a graph of YAML nodes into plain values."""

    def __init__(self, loader: yaml.SafeLoader, source: str, lines: dict[Path, int]) -> None:
        self._loader = loader
        self._source = source
        self._lines = lines
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Value:
        if id(node) in self._seen:
            raise self._wrong(node, "aliases are not supported")
        self._seen.add(id(node))
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        raise self._wrong(node, f"{node.tag} is not supported")

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Value:
        where = f"{render(path)}: " if path else ""
        if node.tag.endswith((":int", ":float")) and node.style is None:
            if ":" in node.value:
                hint = "write seconds, or put it in quotes"
                raise self._wrong(
                    node, f"{where}YAML counts numbers with colons in sixties: {hint}"
                )
            if _OCTAL.fullmatch(node.value):
                hint = "leave the 0 in front out, or put it in quotes"
                raise self._wrong(node, f"{where}YAML takes it for an octal number: {hint}")
        try:
            scalar: object = self._loader.construct_object(node)
        except yaml.YAMLError:
            raise
        except Exception:  # noqa: BLE001 - PyYAML's, for a text unlike its tag: any of Python's
            scalar = NotImplemented
        if scalar is NotImplemented:  # outside of the error, which quotes the value
            raise self._wrong(node, f"{where}does not match its tag, or is too long a number")
        if scalar is None or isinstance(scalar, str | int | float | bool):
            return scalar
        kind = type(scalar).__name__
        raise self._wrong(node, f"{where}YAML takes it for a {kind}: write it in quotes")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._wrong(key_node, "a key must be a word")
            key: str = key_node.value
            if key in values:
                first = self._lines[*path, key]
                raise self._wrong(key_node, f"{key!r} is given twice, first in line {first}")
            self._lines[*path, key] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, (*path, key))
        return values

    def _wrong(self, node: yaml.Node, what: str) -> ConfigError:
        return ConfigError(f"{self._source}:{node.start_mark.line + 1}: {what}")
