"""Finding plugins: what is installed is found, what is broken stops nobody."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hexkv.plugins import AdapterSpec, CommandSpec
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.distributions import COMMANDS
from hexkv.plugins.discovery.registry import Origin, Registry, missing, words
from hexkv.ports import ConfigError

FOUND = Path(__file__).parents[1] / "found"

HOOKS = "hexkv_adapters, hexkv_commands"
WRONG = {
    "raising-import": "RuntimeError: this plugin does not load",
    "no-module": "ModuleNotFoundError: .*no_such_module.*",
    "no-attribute": "AttributeError: .*nothing.*",
    "exits": "SystemExit: 3",
    "raising-hook": "ZeroDivisionError",
    "wrong-type": "TypeError: offers a str, not a AdapterSpec",
    "bad-spec": "TypeError: 'unconfigurable': settings must be a dataclass",
    "typo": f"AttributeError: there is no hook 'hexkv_adapterz'; hooks: {HOOKS}",
    "halfway": "OSError: no second half",
    "no-list": "TypeError: hexkv_adapters gave a int, not a list of them",
    "bad-command": "ValueError: 'Not A Word' is no name.*",
    "no-hooks": f"AttributeError: it implements no hook; hooks: {HOOKS}",
    "forgotten": "AttributeError: hexkv_adapters is no hook: write @hookimpl above it",
    "half-forgotten": "AttributeError: hexkv_adapters is no hook: write @hookimpl above it",
    "no-return": "TypeError: hexkv_adapters gave None: return or yield each AdapterSpec",
    "no-instance": "TypeError: no_instance is a class, and hexkv_adapters needs an instance.*",
    "letters": "TypeError: 'spelt': requires must be a tuple of texts",
}
"""What is said of each plugin in the folder ``broken``."""


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
    assert registry.origin["store", "memory"] == registry.origin["memory", "mmap"]
    assert registry.origin["store", "disk"].distribution.startswith("hexkv-local ")
    assert "inspect" in registry.commands


def test_discovery_is_light():
    heavy = "{'pydantic', 'yaml', 'typer', 'rich', 'torch', 'numpy', 'transformers', 'xxhash'}"
    code = (
        "import sys; from hexkv.plugins.discovery.discovery import discover; discover();"
        "import hexkv.plugins;"
        f"print(sorted({{m.partition('.')[0] for m in sys.modules}} & {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_discovering_twice_gives_two_registries_that_do_not_know_each_other():
    first, second = discover(), discover()
    first.adapters.clear()
    assert second.adapters


def test_what_comes_into_a_folder_and_goes_again_is_there_at_the_next_call(tmp_path, monkeypatch):
    """What is on the disk is read once for as long as no folder changes."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_plugin.py").write_text("1 / 0")
    os.utime(tmp_path, ns=(0, 0))  # clocks of file systems may stand still for milliseconds
    assert "late" not in {origin.plugin for origin in discover().broken}
    described = tmp_path / "late-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[hexkv]\nlate = late_plugin\n")
    assert Origin("late", "late 1") in discover().broken
    described.rename(tmp_path / "late-1.gone")
    os.utime(tmp_path, ns=(0, 1))
    assert "late" not in {origin.plugin for origin in discover().broken}


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
        origin.plugin: words(error)
        for origin, error in registry.broken.items()
        if origin.distribution == "broken_plugins 0.1"
    }
    assert broken.keys() == WRONG.keys()
    for plugin, message in WRONG.items():
        assert re.fullmatch(message, broken[plugin]), f"{plugin}: {broken[plugin]}"
    assert ("policy", "lru") in registry.adapters
    assert ("store", "disk") in registry.adapters


def test_a_broken_plugin_offers_nothing_not_even_its_sound_half(found):
    found("broken")
    found("rival")
    offers = discover().adapters.values()
    assert offers
    assert all(spec.summary != "never offered" for spec in offers)


def test_an_unknown_name_is_answered_with_the_broken_plugins_that_might_have_brought_it(found):
    found("broken")
    registry = discover()
    with pytest.raises(ConfigError) as raised:
        registry.find("store", "first-half")
    message = str(raised.value)
    assert "broken plugins: " in message
    assert "halfway (broken_plugins 0.1): OSError: no second half" in message
    assert "\n" not in message


def test_an_interrupt_while_a_plugin_loads_is_no_broken_plugin(found, monkeypatch):
    found("good")

    def interrupt(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.metadata.import_module", interrupt)
    with pytest.raises(KeyboardInterrupt):
        discover()


def test_a_plugin_that_claims_a_name_that_is_taken_stops_itself_alone(found):
    before = discover()
    found("rival")
    found("twins")
    registry = discover()
    assert registry.origin.items() >= before.origin.items()
    assert ("store", "beside-the-disk") not in registry.adapters
    said = {origin.plugin: str(error) for origin, error in registry.broken.items()}
    local = registry.origin["store", "disk"]
    builtin = registry.origin["policy", "lru"]
    rival, another = "rival (rival_plugin 0.1)", "another (rival_plugin 0.1)"
    assert said == {
        "rival": f"policy adapter 'lru' is offered twice: by {builtin} and by {rival}",
        "another": f"store adapter 'disk' is offered twice: by {local} and by {another}",
        "twin": "two plugins are called 'twin': twin (twin_one 0.1) and twin (twin_two 0.1)",
    }


def test_what_a_plugin_prints_does_not_stand_in_the_answer_of_a_command(found):
    found("loud")
    done = subprocess.run(
        [sys.executable, "-m", "hexkv.plugins", "adapters", "--json"],
        env={**os.environ, "PYTHONPATH": str(FOUND / "loud")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "noise" in {row["name"] for row in json.loads(done.stdout)}
    assert done.stderr.count("hello from the import") == 1
    assert "hello from the hook" in done.stderr


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


def test_what_is_ours_and_not_installed_says_what_to_install():
    """Not the name of another one that happens to be near: redis was answered by disk."""
    bare = Registry()
    for (kind, name), origin in discover().origin.items():
        if kind == "command" and origin.plugin != "builtin":
            assert COMMANDS.get(name, "acme-tape") == origin.distribution.split()[0]
        elif kind not in ("command", "device", "wire") and origin.distribution.startswith("hexkv-"):
            distribution = origin.distribution.split()[0]
            with pytest.raises(ConfigError, match=f"{kind} adapter '{name}': .* {distribution}$"):
                bare.find(kind, name)
