"""The contract of plugins: their discovery, and the adapters that they offer."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.whole import Whole
from hexkv.plugins.configuration.secret import Secret
from hexkv.plugins.discovery.discovery import GROUP, discover
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import AdapterSpec, CommandSpec
from hexkv.ports.runtime.contract import unkept

HEAVY = frozenset(
    {
        "awscrt",
        "boto3",
        "cupy",
        "lmcache",
        "mooncake",
        "nixl",
        "numpy",
        "pydantic",
        "redis",
        "rich",
        "sglang",
        "torch",
        "transformers",
        "triton",
        "typer",
        "vllm",
        "yaml",
        "zmq",
    }
)
"""Modules that cost time or memory to import, or may not be there."""

_LOAD_ALONE = """
import importlib.metadata, json, sys

path, refused, group, name = json.loads(sys.argv[1])
sys.path[:] = path
asked = []

class Refuse:
    @staticmethod
    def find_spec(module, path=None, target=None):
        if any(f"{module}.".startswith(f"{name}.") for name in refused):
            asked.append(module)
            raise ImportError(f"{module} is refused during discovery")

sys.meta_path.insert(0, Refuse)
(entry,) = importlib.metadata.entry_points(group=group, name=name)
plugin = entry.load()
for hook in ("hexkv_adapters", "hexkv_commands"):
    list(getattr(plugin, hook, list)())
print(json.dumps(sorted(set(asked))))
"""


class PluginContract(Whole):
    """Subclass this and name your entry point."""

    entry_point: ClassVar[str]
    """The left side of your line in ``[project.entry-points.hexkv]``."""

    @pytest.fixture
    def registry(self) -> Registry:
        """The registry of installed plugins."""
        return discover()

    @promise(
        "plugin.1",
        "is installed once",
        clause="entry point",
        why="the second of two is left out, and a plugin without one is not found",
        hint="[project.entry-points.hexkv], pip install -e .",
    )
    def test_is_installed_once(self) -> None:
        found = importlib.metadata.entry_points(group=GROUP, name=self.entry_point)
        assert len(found) == 1

    @promise(
        "plugin.2",
        "is found by discovery, and is not broken",
        clause="Hooks",
        why="a configuration of the adapter would fail: it does not exist",
    )
    def test_is_found_by_discovery(self, registry: Registry) -> None:
        broken = {origin.plugin: error for origin, error in registry.broken.items()}
        assert self.entry_point not in broken, repr(broken.get(self.entry_point))
        assert list(self._offered(registry)), "it offers neither an adapter nor a command"

    @promise(
        "plugin.3",
        "imports nothing heavy to say what it offers",
        clause="hexkv_adapters",
        why="every command would start seconds later, or not at all where it is missing",
        hint="import in the function that opens the adapter; a guarded import counts, too",
    )
    def test_discovery_imports_nothing_heavy(self, registry: Registry) -> None:
        named = {name for s in self._offered(registry) for name in s.requires}
        # Of this distribution only the module: the plugin itself is in the same namespace.
        required = {name if name.startswith("hexkv.") else name.partition(".")[0] for name in named}
        order = [sys.path, sorted(HEAVY | required), GROUP, self.entry_point]
        done = subprocess.run(  # noqa: S603 - our own interpreter and our own script
            [sys.executable, "-P", "-c", _LOAD_ALONE, json.dumps(order)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []

    @promise(
        "plugin.4",
        "describes everything that it offers in one line",
        clause="AdapterSpec.summary",
        why="`hexkv adapters` has nothing that helps to choose",
    )
    def test_offers_have_summaries(self, registry: Registry) -> None:
        for spec in self._offered(registry):
            assert spec.summary.strip(), f"{spec.name} has no summary"
            assert "\n" not in spec.summary, f"the summary of {spec.name} has more than one line"

    @promise(
        "plugin.5",
        "has defaults that a configuration file can hold, too",
        clause="AdapterSpec.settings",
        why="the default could not be written down, or shown by `hexkv config`",
        hint="str, int, float, bool, None, and lists, tuples, dictionaries and dataclasses of them",
    )
    def test_defaults_are_plain(self, registry: Registry) -> None:
        for spec in self._offered(registry):
            if isinstance(spec, AdapterSpec):
                for setting in fields(spec.settings):
                    assert _is_plain(setting), f"default of {spec.name}'s {setting.name}"

    @promise(
        "plugin.6",
        "explains how to get what it requires",
        clause="AdapterSpec.hint",
        why="the error names the missing module, and not how to get it",
        hint="AdapterSpec(hint=...)",
    )
    def test_says_how_to_get_what_it_requires(self, registry: Registry) -> None:
        for spec in self._offered(registry):
            assert not spec.requires or spec.hint.strip(), f"{spec.name} has no hint"

    @promise(
        "plugin.7",
        "was written for contracts that this hexkv keeps",
        clause="AdapterSpec.contract",
        why="it is not built: its code may not fit the changes between",
        hint="install the hexkv of that version, or read what changed and set AdapterSpec.contract",
    )
    def test_was_written_for_a_contract_that_is_kept(self, registry: Registry) -> None:
        for spec in self._offered(registry):
            if isinstance(spec, AdapterSpec):
                why = unkept(spec.contract)
                assert not why, f"{spec.name} {why}"

    @pytest.mark.thorough
    @promise(
        "plugin.8",
        "does nothing when it is imported: reads no environment, opens, starts and prints nothing",
        clause="entry point",
        why="every program that has it installed would do that, and a test could not prevent it",
        hint="do it in the function that opens the adapter; settings come from the configuration",
    )
    def test_imports_do_nothing(self) -> None:
        script = Path(__file__).with_name("_imports.py")
        order = json.dumps([sys.path, GROUP, self.entry_point])
        done = subprocess.run(  # noqa: S603 - our own interpreter and our own script
            [sys.executable, "-P", script, order],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        did = json.loads(done.stdout.splitlines()[-1])
        assert not did, "; ".join(did)

    def _offered(self, registry: Registry) -> Iterator[AdapterSpec | CommandSpec]:
        for (kind, name), origin in registry.origin.items():
            if origin.plugin != self.entry_point:
                continue
            if kind == "command":
                yield registry.commands[name]
            else:
                yield registry.adapters[kind, name]


def _shown(value: object) -> str:
    if isinstance(value, Secret):
        return str(value)
    raise TypeError


def _is_plain(setting: Field[object]) -> bool:
    """True if the default, if there is one, can be written as JSON."""
    value = None if setting.default is MISSING else setting.default
    if setting.default_factory is not MISSING:
        value = setting.default_factory()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    try:
        json.dumps(value, default=_shown)
    except (TypeError, ValueError):
        return False
    return True
