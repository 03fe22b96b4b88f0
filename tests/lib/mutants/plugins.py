"""Plugins that cannot be found, or cost too much to look at. Each is installed for its test."""

from __future__ import annotations

import importlib
import textwrap

import pytest

from hexkv.contracts.plugin import PluginContract

SOUND = """
    from dataclasses import dataclass, field
    from pathlib import Path
    from hexkv.plugins.spec import AdapterSpec, CommandSpec, hookimpl

    @dataclass
    class Settings:
        reel: str
        speed: float = 1.5
        extra: dict[str, int] = field(default_factory=dict)

    def wind(settings, context): ...

    @hookimpl
    def hexkv_adapters():
        needs = {"requires": ("numpy",), "hint": "pip it"}
        return [AdapterSpec("store", "gramophone", "on shellac", wind, Settings, **needs)]

    @hookimpl
    def hexkv_commands():
        return [CommandSpec("rewind", "rewind the spring", list)]
"""


class GramophoneContract(PluginContract):
    entry_point = "gramophone"
    change = ("", "")
    """What of the sound plugin is replaced by what."""
    distributions = ("gramophone",)

    @pytest.fixture(autouse=True)
    def installed(self, tmp_path, monkeypatch):
        """The plugin, as ``pip install`` leaves it."""
        sound, flawed = self.change
        assert sound in SOUND
        for distribution in self.distributions:
            site = tmp_path / distribution
            info = site / f"{distribution}-1.dist-info"
            info.mkdir(parents=True)
            module = f"{distribution}_plugin_{type(self).__name__.lower()}"
            (site / f"{module}.py").write_text(textwrap.dedent(SOUND.replace(sound, flawed, 1)))
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n"
            )
            (info / "entry_points.txt").write_text(f"[hexkv]\ngramophone = {module}\n")
            monkeypatch.syspath_prepend(site)
        importlib.invalidate_caches()


class TestIsInstalledTwice(GramophoneContract):
    """Two distributions have the same entry point."""

    breaks = "plugin.1"
    distributions = ("gramophone", "gramophone_again")


class TestRaisesWhenAsked(GramophoneContract):
    """A hook raises."""

    breaks = "plugin.2"
    change = ("return [CommandSpec", "raise OSError [CommandSpec")


class TestHasAStrangeName(GramophoneContract):
    """An adapter's name has blanks and capitals."""

    breaks = "plugin.2"
    change = ('"gramophone"', '"Gramo Phone"')


class TestImportsWhatItRequires(GramophoneContract):
    """What the adapter needs is imported to say that there is one."""

    breaks = "plugin.3"
    change = ("from pathlib import Path", "import numpy")


class TestGuardsAHeavyImport(GramophoneContract):
    """Something heavy is imported if it is there."""

    breaks = "plugin.3"
    change = (
        "from pathlib import Path",
        "import contextlib\n    with contextlib.suppress(ImportError): import torch.nn",
    )


class TestHasNoSummary(GramophoneContract):
    """Nobody learns what it is."""

    breaks = "plugin.4"
    change = ('"on shellac"', '" "')


class TestHasARichDefault(GramophoneContract):
    """A default is an object that no configuration file can hold."""

    breaks = "plugin.5"
    change = ("speed: float = 1.5", "speed: Path = Path()")


class TestDoesNotSayHowToGetIt(GramophoneContract):
    """It requires something, and does not say how to get it."""

    breaks = "plugin.6"
    change = ('"pip it"', '""')


class TestIsOfAnotherAge(GramophoneContract):
    """It was written for contracts that this kit does not check."""

    breaks = "plugin.7"
    change = ('"hint": "pip it"', '"hint": "pip it", "contract": 0')
