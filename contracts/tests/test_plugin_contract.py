"""The plugin contract passes a sound plugin, and says what is wrong with others."""

import importlib
import textwrap

import pytest

from depth import thorough
from hexkv.contracts.plugin import PluginContract
from hexkv.plugins.discovery.discovery import discover

SOUND = """
    from dataclasses import dataclass, field
    from pathlib import Path
    from hexkv.plugins.spec import CONTRACT, AdapterSpec, CommandSpec, hookimpl

    @dataclass
    class Settings:
        reel: str
        speed: float = 1.5
        labels: tuple[str, ...] = ("a", "b")
        extra: dict[str, int] = field(default_factory=dict)

    def wind(settings, context): ...

    @hookimpl
    def hexkv_adapters():
        needs = {"contract": CONTRACT, "requires": ("numpy",), "hint": "pip it"}
        return [AdapterSpec("store", "gramophone", "on shellac", wind, Settings, **needs)]

    @hookimpl
    def hexkv_commands():
        return [CommandSpec("rewind", "rewind the spring", list)]
"""

FLAWS = {
    "imports what it requires": (
        "from pathlib import Path",
        "import numpy",
        "test_discovery_imports_nothing_heavy",
    ),
    "guards a heavy import": (
        "from pathlib import Path",
        "import contextlib\n    with contextlib.suppress(ImportError): import torch.nn",
        "test_discovery_imports_nothing_heavy",
    ),
    "has no summary": ('"on shellac"', '" "', "test_offers_have_summaries"),
    "has a long summary": (
        '"rewind the spring"',
        r'"a\nb"',
        "test_offers_have_summaries",
    ),
    "has a strange name": ('"gramophone"', '"Gramo Phone"', "test_is_found_by_discovery"),
    "has no hint": ('"pip it"', '""', "test_says_how_to_get_what_it_requires"),
    "has no dataclass": ("    @dataclass\n", "", "test_is_found_by_discovery"),
    "has a rich default": ("speed: float = 1.5", "speed: Path = Path()", "test_defaults_are_plain"),
    "has a rich factory": (
        "default_factory=dict",
        "default_factory=set",
        "test_defaults_are_plain",
    ),
    "is written for another contract": (
        '"hint": "pip it"',
        '"hint": "pip it", "contract": 0',
        "test_was_written_for_a_contract_that_is_kept",
    ),
    "raises": ("return [CommandSpec", "raise OSError [CommandSpec", "test_is_found_by_discovery"),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install plugin *source* under the entry point ``gramophone``."""

    def install(source, distribution="gramophone"):
        module = f"plugin_of_{tmp_path.name}_{distribution}".replace("-", "_")
        site = tmp_path / distribution
        info = site / f"{distribution}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[hexkv]\ngramophone = {module}\n")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(site)
        importlib.invalidate_caches()

    return install


def broken_tests(*names):
    """Which of *names*, or of all tests of the contract, the plugin ``gramophone`` fails."""

    class Gramophone(PluginContract):
        entry_point = "gramophone"

    plugin, broken = Gramophone(), set()
    for name in names or (name for name in dir(plugin) if name.startswith("test_")):
        test = getattr(plugin, name)
        try:
            if "registry" in test.__code__.co_varnames:
                test(discover())
            else:
                test()
        except AssertionError:
            broken.add(name)
    return broken


def test_a_sound_plugin_keeps_every_promise(install):
    install(SOUND)
    assert broken_tests() == set()


@pytest.mark.parametrize("flaw", [next(iter(FLAWS)), *thorough(*list(FLAWS)[1:])])
def test_a_flawed_plugin_is_caught(install, flaw):
    sound, flawed, test = FLAWS[flaw]
    assert SOUND.count(sound) == 1
    install(SOUND.replace(sound, flawed))
    assert broken_tests(test) == {test}


def test_a_plugin_that_is_not_installed_is_caught():
    names = {"test_is_installed_once", "test_is_found_by_discovery"}
    assert broken_tests(*names) == names


def test_a_plugin_that_is_installed_twice_is_caught(install):
    install(SOUND)
    install(SOUND, "gramophone_again")
    assert broken_tests("test_is_installed_once")
