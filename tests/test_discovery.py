"""Finding plugins: what is installed is found, what is broken stops nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hexkv.plugins import AdapterSpec, CommandSpec
from hexkv.plugins.discovery import discover
from hexkv.plugins.registry import Origin, Registry, missing
from hexkv.ports import ConfigError

FOUND = Path(__file__).parent / "found"


@pytest.fixture
def found(monkeypatch):
    """Puts one of the folders beside this file on the path, as if it were installed."""

    def install(folder: str) -> None:
        assert (FOUND / folder).is_dir()
        monkeypatch.syspath_prepend(FOUND / folder)

    return install


def test_everything_in_this_repository_is_found_and_whole():
    registry = discover()
    assert registry.broken == {}
    assert registry.origin["policy", "lru"].plugin == "builtin"
    assert registry.origin["store", "disk"] == registry.origin["memory", "mmap"]
    assert registry.origin["store", "disk"].distribution.startswith("hexkv-local ")
    assert "inspect" in registry.commands


def test_discovery_is_light():
    heavy = "{'pydantic', 'yaml', 'typer', 'rich', 'torch', 'numpy', 'transformers', 'xxhash'}"
    code = (
        "import sys; from hexkv.plugins.discovery import discover; discover();"
        "import hexkv.plugins;"
        f"print(sorted({{m.partition('.')[0] for m in sys.modules}} & {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_discovering_twice_gives_two_registries_that_do_not_know_each_other():
    first, second = discover(), discover()
    first.adapters.clear()
    assert second.adapters


def test_a_plugin_of_somebody_else_is_found_with_its_distribution(found):
    found("good")
    registry = discover()
    assert registry.origin["store", "papyrus"] == Origin("good", "good_plugin 0.1")
    assert missing(registry.find("store", "papyrus")) == ("no_such_module",)
    assert missing(registry.commands["rewind"]) == ("no_such_module.inner",)


def test_broken_plugins_are_recorded_and_stop_nobody(found):
    found("broken")
    registry = discover()
    broken = {
        origin.plugin: type(error)
        for origin, error in registry.broken.items()
        if origin.distribution == "broken_plugins 0.1"
    }
    assert broken == {
        "raising-import": RuntimeError,
        "no-module": ModuleNotFoundError,
        "no-attribute": AttributeError,
        "exits": SystemExit,
        "raising-hook": ZeroDivisionError,
        "wrong-type": TypeError,
        "bad-spec": TypeError,
        "typo": AttributeError,
        "halfway": OSError,
        "no-list": TypeError,
        "bad-command": ValueError,
    }
    assert ("policy", "lru") in registry.adapters
    assert ("store", "disk") in registry.adapters


def test_a_broken_plugin_offers_nothing_not_even_its_sound_half(found):
    found("broken")
    offered = {name for _, name in discover().adapters}
    assert offered.isdisjoint({"first-half", "beside-a-bad-command", "misspelt"})


def test_an_interrupt_while_a_plugin_loads_is_no_broken_plugin(found, monkeypatch):
    found("good")

    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.metadata.import_module", interrupt)
    with pytest.raises(KeyboardInterrupt):
        discover()


def test_two_plugins_that_offer_the_same_are_an_error_that_names_both(found):
    found("rival")
    with pytest.raises(
        ConfigError,
        match=r"policy adapter 'lru' is offered twice: by builtin \(.*\) and by rival \(rival_p",
    ):
        discover()


def test_two_distributions_with_one_plugin_name_are_an_error_that_names_both(found):
    found("twins")
    with pytest.raises(ConfigError, match=r"'twin': .*twin_(one|two).* and .*twin_(one|two)"):
        discover()


def test_two_commands_of_one_name_are_an_error_that_names_both():
    registry = Registry()
    command = CommandSpec("ls", "", lambda words: 0)
    registry.offer(Origin("a", "a-dist 1"), commands=[command])
    with pytest.raises(ConfigError, match=r"command 'ls' is offered twice: by a \(a-dist 1\) and"):
        registry.offer(Origin("b", ""), commands=[command])


def test_one_name_may_stand_for_adapters_of_several_kinds():
    registry = Registry()
    both = [
        AdapterSpec("store", "x", "", lambda s, c: None),
        AdapterSpec("memory", "x", "", lambda s, c: None),
    ]
    registry.offer(Origin("a", ""), both)
    assert len(registry.adapters) == 2


def test_an_adapter_of_ours_that_is_not_installed_says_what_to_install():
    """Not the name of another one that happens to be near: redis was answered by disk."""
    bare = Registry()
    for (kind, name), origin in discover().origin.items():
        if kind in ("memory", "serde", "store") and origin.distribution.startswith("hexkv-"):
            distribution = origin.distribution.split()[0]
            with pytest.raises(ConfigError, match=f"{kind} adapter '{name}': .* {distribution}$"):
                bare.find(kind, name)
