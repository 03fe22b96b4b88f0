"""Plugins that cannot be found, or cost too much to look at. Each is installed for its test."""

from __future__ import annotations

import importlib
import textwrap

import pytest

from hexkv.contracts.plugin import PluginContract
from mutants.rows import Wrong, broken

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


ROWS = {
    "plugin.1 is installed twice": Wrong(
        "Two distributions have the same entry point.",
        distributions=("gramophone", "gramophone_again"),
    ),
    "plugin.2 raises when asked": Wrong(
        "A hook raises.", change=("return [CommandSpec", "raise OSError [CommandSpec")
    ),
    "plugin.2 has a strange name": Wrong(
        "An adapter's name has blanks and capitals.", change=('"gramophone"', '"Gramo Phone"')
    ),
    "plugin.3 imports what it requires": Wrong(
        "What the adapter needs is imported to say that there is one.",
        change=("from pathlib import Path", "import numpy"),
    ),
    "plugin.3 guards a heavy import": Wrong(
        "Something heavy is imported if it is there.",
        change=(
            "from pathlib import Path",
            "import contextlib\n    with contextlib.suppress(ImportError): import torch.nn",
        ),
    ),
    "plugin.4 has no summary": Wrong("Nobody learns what it is.", change=('"on shellac"', '" "')),
    "plugin.5 has a rich default": Wrong(
        "A default is an object that no configuration file can hold.",
        change=("speed: float = 1.5", "speed: Path = Path()"),
    ),
    "plugin.6 does not say how to get it": Wrong(
        "It requires something, and does not say how to get it.", change=('"pip it"', '""')
    ),
    "plugin.7 is of another age": Wrong(
        "It was written for contracts that this kit does not check.",
        change=('"hint": "pip it"', '"hint": "pip it", "contract": 0'),
    ),
    "plugin.8 reads the environment": Wrong(
        "A default comes from the environment.",
        change=("from pathlib import Path", "import os\n    HOME = os.environ.get('HOME')"),
    ),
    "plugin.8 reads the environment later": Wrong(
        "So does one of the module with the store.",
        change_store=("speed = 78", "import os; speed = os.getenv('SPEED')"),
    ),
    "plugin.8 starts a thread": Wrong(
        "A thread is there before anybody needs one.",
        change_store=("speed = 78", "import threading; threading.Thread(target=list).start()"),
    ),
    "plugin.8 prints": Wrong(
        "Whoever imports it is greeted.", change_store=("speed = 78", "print('winding')")
    ),
    "plugin.8 opens a file": Wrong(
        "A list of records is read.",
        change=("from pathlib import Path", "from pathlib import Path; Path(__file__).read_text()"),
    ),
    "plugin.8 runs a program": Wrong(
        "The version of a program is asked for.",
        change_store=("speed = 78", "import subprocess; subprocess.run(['true'], check=True)"),
    ),
    "plugin.8 ends the program": Wrong(
        "Where something is missing, nothing goes on.",
        change_store=("speed = 78", "raise SystemExit(1)"),
    ),
    "plugin.8 calls home": Wrong(
        "It asks for the newest version.",
        change_store=("speed = 78", "import socket; socket.socket(socket.AF_UNIX).close()"),
    ),
    "plugin.8 looks into the environment": Wrong(
        "Whether there is a variable, and not what it says.",
        change_store=("speed = 78", "import os; speed = 78 if 'SPEED' in os.environ else 33"),
    ),
}
globals().update(broken(__name__, GramophoneContract, None, ROWS))
