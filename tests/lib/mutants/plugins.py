"""Plugins that cannot be found, or cost too much to look at. Each is installed for its test."""

from __future__ import annotations

import importlib
import textwrap

import pytest

from hexkv.contracts.plugin import PluginContract

SOUND = """
    from dataclasses import dataclass, field
    from pathlib import Path
    from hexkv.plugins.spec import CONTRACT, AdapterSpec, CommandSpec, hookimpl

    @dataclass
    class Settings:
        reel: str
        speed: float = 1.5
        extra: dict[str, int] = field(default_factory=dict)

    def wind(settings, context):
        from . import store
        return store.Gramophone()

    @hookimpl
    def hexkv_adapters():
        needs = {"contract": CONTRACT, "requires": ("numpy",), "hint": "pip it"}
        return [AdapterSpec("store", "gramophone", "on shellac", wind, Settings, **needs)]

    @hookimpl
    def hexkv_commands():
        return [CommandSpec("rewind", "rewind the spring", list)]
"""


STORE = """
    class Gramophone:
        speed = 78
"""


class GramophoneContract(PluginContract):
    entry_point = "gramophone"
    change = ("", "")
    """What of the sound plugin is replaced by what."""
    change_store = ("", "")
    """Likewise in the module that is imported when the adapter is opened."""
    distributions = ("gramophone",)

    @pytest.fixture(autouse=True)
    def installed(self, tmp_path, monkeypatch):
        """The plugin, as ``pip install`` leaves it."""
        for distribution in self.distributions:
            site = tmp_path / distribution
            info = site / f"{distribution}-1.dist-info"
            info.mkdir(parents=True)
            package = f"{distribution}_plugin_{type(self).__name__.lower()}"
            (site / package).mkdir()
            (site / package / "__init__.py").touch()
            sources = {"plugin": (SOUND, self.change), "store": (STORE, self.change_store)}
            for name, (source, (sound, flawed)) in sources.items():
                assert sound in source
                written = textwrap.dedent(source.replace(sound, flawed, 1))
                (site / package / f"{name}.py").write_text(written)
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n"
            )
            (info / "entry_points.txt").write_text(f"[hexkv]\ngramophone = {package}.plugin\n")
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


class TestReadsTheEnvironment(GramophoneContract):
    """A default comes from the environment."""

    breaks = "plugin.8"
    change = ("from pathlib import Path", "import os\n    HOME = os.environ.get('HOME')")


class TestReadsTheEnvironmentLater(GramophoneContract):
    """So does one of the module with the store."""

    breaks = "plugin.8"
    change_store = ("speed = 78", "import os; speed = os.getenv('SPEED')")


class TestStartsAThread(GramophoneContract):
    """A thread is there before anybody needs one."""

    breaks = "plugin.8"
    change_store = ("speed = 78", "import threading; threading.Thread(target=list).start()")


class TestPrints(GramophoneContract):
    """Whoever imports it is greeted."""

    breaks = "plugin.8"
    change_store = ("speed = 78", "print('winding')")


class TestOpensAFile(GramophoneContract):
    """A list of records is read."""

    breaks = "plugin.8"
    change = ("from pathlib import Path", "from pathlib import Path; Path(__file__).read_text()")


class TestRunsAProgram(GramophoneContract):
    """The version of a program is asked for."""

    breaks = "plugin.8"
    change_store = ("speed = 78", "import subprocess; subprocess.run(['true'], check=True)")


class TestEndsTheProgram(GramophoneContract):
    """Where something is missing, nothing goes on."""

    breaks = "plugin.8"
    change_store = ("speed = 78", "raise SystemExit(1)")


class TestCallsHome(GramophoneContract):
    """It asks for the newest version."""

    breaks = "plugin.8"
    change_store = ("speed = 78", "import socket; socket.socket(socket.AF_UNIX).close()")


class TestLooksIntoTheEnvironment(GramophoneContract):
    """Whether there is a variable, and not what it says."""

    breaks = "plugin.8"
    change_store = ("speed = 78", "import os; speed = 78 if 'SPEED' in os.environ else 33")
