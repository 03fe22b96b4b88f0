"""The ``hexkv`` command: every command, for people and for programs, well and badly called."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import yaml

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.plugins import AdapterSpec, CommandSpec
from hexkv.plugins.__main__ import main
from hexkv.plugins.cli.output import human_age, human_size
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.sizes import exact_size, parse_size
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.distributions import COMMANDS, GROUPS
from hexkv.plugins.discovery.registry import Origin, Registry
from hexkv.plugins.spec import CONTRACT
from hexkv.ports import ConfigError, DType, KVLayout, Namespace, ParallelSlice

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=32)
SIZE = 16


@dataclass(frozen=True)
class Vault:
    url: str
    password: str = field(default="", repr=False)


@pytest.fixture
def registry(monkeypatch):
    """What the commands find: what is installed and sound, and what a test adds."""
    found = discover()
    found.broken.clear()  # an adapter of this repository may lack what it needs here
    for module in (
        "plugins.__main__",
        "plugins.cli.adapters",
        "plugins.cli.config",
        "adapters.local.inspect",
    ):
        monkeypatch.setattr(f"hexkv.{module}.installed", lambda: found)
    for name in ("HEXKV_CONFIG", "HEXKV_POOL__BYTES"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def run(registry, capsys):
    """Runs ``hexkv`` in this process; gives exit code, output and errors."""

    def call(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def directory(tmp_path, registry):
    """A disk tier with two chunks."""
    root = tmp_path / "kv"
    tiers = [{"store": "disk", "settings": {"root": root}}]
    settings = load(None, {}, {"chunk": {"size": SIZE}, "pool": {"bytes": "1MiB"}, "tiers": tiers})
    namespace = Namespace("toy", LAYOUT, revision="r1", parallel=ParallelSlice(1, 2))
    tokens = list(range(2 * SIZE))
    with build(settings, namespace, registry=registry) as engine:
        engine.store(tokens, HeapKV(LAYOUT, len(tokens)).compute(tokens))
    return root


def frames(root):
    return sorted(root.rglob("*.hexkv"))


def test_the_installed_command_runs_and_says_its_version():
    done = subprocess.run(
        [sys.executable, "-m", "hexkv.plugins", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("hexkv 0.")


def test_help_lists_the_commands_of_all_plugins(run, registry):
    registry.offer(
        Origin("p", ""), commands=[CommandSpec("dance", "Dance a step", lambda words: 0)]
    )
    code, out, _ = run("--help")
    assert code == 0
    assert "Dance a step" in out
    assert "inspect" in out


def test_help_has_each_command_of_ours_below_one_heading_and_in_one_line(run, registry):
    registry.offer(Origin("p", ""), commands=[CommandSpec("dance", "Dance", lambda words: 0)])
    _, out, _ = run("--help")
    lines = out.partition("Commands to run:")[2].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    known = {name for name in registry.commands if "." not in name}
    assert sorted(listed) == sorted(known)
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(known - {"dance"})
    assert listed[-1] == "dance"
    assert out.count("Commands ") == len(GROUPS) + 1


def test_called_without_a_command_it_shows_help_and_fails(run):
    code, out, _ = run()
    assert code == 2
    assert "Usage: hexkv" in out


def test_adapters_lists_what_is_installed(run):
    code, out, err = run("adapters")
    assert (code, err) == (0, "")
    assert "xxh3-128" in out
    assert "hexkv-local" in out


def test_adapters_as_json_says_what_is_missing_and_what_is_broken(run, registry):
    spec = AdapterSpec(
        "store",
        "papyrus",
        "on papyrus",
        lambda s, c: None,
        requires=("no_such_module",),
        hint="buy",
        contract=CONTRACT,
    )
    registry.offer(Origin("scrolls", "scrolls 1.0"), [spec])
    registry.broken[Origin("bad", "bad-dist 2.0")] = ImportError("no luck")
    code, out, _ = run("adapters", "--json")
    rows = {(row["kind"], row["name"]): row for row in json.loads(out)}
    assert code == 1
    assert rows["store", "papyrus"]["state"] == "needs no_such_module (buy)"
    assert rows["policy", "lru"]["state"] == "ready"
    assert rows["plugin", "bad"] == {
        "kind": "plugin",
        "name": "bad",
        "state": "broken",
        "summary": "ImportError: no luck",
        "plugin": "bad",
        "distribution": "bad-dist 2.0",
        "contract": None,
    }
    assert rows["store", "papyrus"]["contract"] == CONTRACT


def test_config_show_prints_yaml_that_can_be_read_back(run, tmp_path):
    _, first, _ = run("config", "show")
    path = tmp_path / "copy.yaml"
    path.write_text(first)
    assert run("config", "show", "--config", path) == (0, first, "")


def test_config_show_as_json_is_the_whole_configuration(run, monkeypatch):
    monkeypatch.setenv("HEXKV_POOL__BYTES", "2MiB")
    code, out, _ = run("config", "show", "--json")
    assert code == 0
    assert json.loads(out)["pool"]["bytes"] == 2 * 2**20
    assert json.loads(out)["pool"]["settings"] == {"huge_pages": True, "prefault": False}
    assert yaml.safe_load(run("config", "show")[1])["pool"]["bytes"] == "2MiB"


def test_config_show_says_where_each_value_comes_from(run, monkeypatch, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("chunk:\n  size: 64\n")
    monkeypatch.setenv("HEXKV_POOL__BYTES", "2MiB")
    code, out, _ = run("config", "show", "--config", path, "--origin", "--json")
    values = json.loads(out)
    assert code == 0
    assert values["chunk.size"] == {"value": 64, "origin": f"{path}:2"}
    assert values["pool.bytes"] == {"value": 2097152, "origin": "env HEXKV_POOL__BYTES"}
    assert values["tiers[0].store"] == {"value": "memory", "origin": "default"}
    _, out, _ = run("config", "show", "--config", path, "--origin")
    assert any(line.split() == ["chunk.size", "64", f"{path}:2"] for line in out.splitlines())


def test_config_show_keeps_secrets(run, registry, tmp_path):
    registry.offer(
        Origin("v", ""),
        [AdapterSpec("store", "vault", "", lambda s, c: None, settings=Vault, contract=CONTRACT)],
    )
    path = tmp_path / "c.yaml"
    path.write_text(
        "model: {salt: pepper}\ntiers: [{store: vault, settings: {url: there, password: sesame}}]\n"
    )
    for options in ([], ["--json"], ["--origin"]):
        code, out, _ = run("config", "show", "--config", path, *options)
        assert code == 0
        assert "there" in out
        assert "pepper" not in out
        assert "sesame" not in out


def test_a_bad_configuration_is_one_line_on_stderr(run, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("pool:\n  byts: 1\ntiers:\n- {store: memory, settings: {size: 1}}\n")
    code, out, err = run("config", "show", "--config", path)
    assert (code, out) == (2, "")
    assert err.startswith(
        f"error: --config: pool.byts (from {path}:2): unknown key, did you mean 'bytes'?"
    )
    assert err.count("\n") == 1


def test_with_debug_an_error_keeps_its_traceback(run):
    with pytest.raises(ConfigError):
        run("--debug", "config", "show", "--config", "/nowhere.yaml")


def test_inspect_describes_every_frame_and_sums_up_namespaces(run, directory):
    code, out, _ = run("inspect", directory, "--verify", "--json")
    report = json.loads(out)
    assert code == 0
    assert [frame["tokens"] for frame in report["frames"]] == [SIZE, SIZE]
    assert report["frames"][0]["identity"]["model"] == "toy"
    (space,) = report["namespaces"]
    assert (space["chunks"], space["tokens"]) == (2, 2 * SIZE)
    assert space["bytes"] == sum(path.stat().st_size for path in frames(directory))
    assert (report["damaged"], report["foreign"], report["unfinished"]) == ([], 0, 0)
    code, out, _ = run("inspect", directory)
    assert code == 0
    assert "toy@r1 1/2" in out
    assert "2 layers 2x32 float16" in out
    assert "2 frames, 0 damaged, 0 unfinished, 0 foreign files" in out


def test_inspect_works_on_a_directory_in_use(run, directory, registry):
    settings = load(
        None,
        {},
        {
            "chunk": {"size": SIZE},
            "pool": {"bytes": "1MiB"},
            "tiers": [{"store": "disk", "settings": {"root": directory}}],
        },
    )
    with build(settings, Namespace("other", LAYOUT), registry=registry) as engine:
        engine.store(list(range(SIZE)), HeapKV(LAYOUT, SIZE))
        code, out, _ = run("inspect", directory, "--json", "--verify")
    assert code == 0
    assert len(json.loads(out)["namespaces"]) == 2


def test_inspect_reports_damage_and_fails(run, directory):
    first, second = frames(directory)
    data = bytearray(first.read_bytes())
    data[5000] ^= 4
    first.write_bytes(data)
    second.write_bytes(second.read_bytes()[:-4096])
    (directory / "notes.txt").write_text("mine")
    code, out, _ = run("inspect", directory, "--verify", "--json")
    report = json.loads(out)
    assert code == 1
    assert len(report["damaged"]) == 2
    assert report["foreign"] == 1
    code, out, _ = run("inspect", directory, "--verify")
    assert code == 1
    assert "0 frames, 2 damaged, 0 unfinished, 1 foreign files" in out


def test_inspect_lists_only_the_newest_unless_told_otherwise(run, directory, monkeypatch):
    monkeypatch.setattr("hexkv.adapters.local.inspect._SHOWN", 1)
    assert "... and 1 older (--all lists them)" in run("inspect", directory)[1]
    assert "older" not in run("inspect", directory, "--all")[1]


def test_inspect_of_a_place_that_is_no_directory_is_one_line(run, tmp_path):
    code, out, err = run("inspect", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert err.endswith("nowhere: is not a directory\n")
    assert err.startswith("error: ")


def test_a_plugins_command_gets_every_word_after_its_name(run, registry):
    heard = []

    def listen(words):
        heard.extend(words)
        return 7

    registry.offer(Origin("p", ""), commands=[CommandSpec("hear", "Hear", listen)])
    assert run("hear", "--json", "-x", "1", "word", "--help", "--", "end")[0] == 7
    assert heard == ["--json", "-x", "1", "word", "--help", "--", "end"]


def test_a_plugins_command_that_lacks_something_says_so(run, registry):
    registry.offer(
        Origin("p", ""),
        commands=[
            CommandSpec("gpu", "", lambda w: 0, requires=("no_such_module",), hint="pip install x")
        ],
    )
    code, _, err = run("gpu")
    assert code == 1
    assert err == "error: adapter 'gpu' is not available: needs no_such_module (pip install x)\n"


@each(("name", "distribution"), COMMANDS.items())
def test_a_command_that_is_not_installed_names_its_distribution(name, distribution, run, registry):
    registry.commands.pop(name)
    code, out, err = run(*name.split("."), "--model", "x")
    assert (code, out) == (1, "")
    assert f"(pip install {distribution})" in err
    assert err.count("\n") == 1


def test_the_demo_is_whatever_a_plugin_offers_as_demo(run, registry):
    registry.commands.pop("demo", None)
    registry.origin.pop(("command", "demo"), None)
    registry.offer(Origin("hf", ""), commands=[CommandSpec("demo", "", lambda words: len(words))])
    assert run("demo", "--model", "x")[0] == 2


def test_plugins_that_contradict_each_other_are_one_line(capsys, monkeypatch):
    def contradict():
        raise ConfigError("store adapter 'a' is offered twice: by x and by y")

    monkeypatch.setattr("hexkv.plugins.__main__.installed", contradict)
    assert main(["adapters"]) == 1
    assert capsys.readouterr().err == "error: store adapter 'a' is offered twice: by x and by y\n"


@each(
    "words",
    [
        ["nonsense"],
        ["--nonsense"],
        ["adapters", "--jsn"],
        ["adapters", "extra"],
        ["config"],
        ["config", "nonsense"],
        ["config", "show", "--config"],
        ["inspect"],
        ["inspect", "a", "b"],
    ],
)
def test_a_wrong_call_is_told_apart_by_its_exit_code(words, run):
    code, _, err = run(*words)
    assert code == 2
    assert "Error" in err


@each("words", [["adapters"], ["config", "show"], ["inspect"]])
def test_every_command_explains_itself(words, run):
    code, out, _ = run(*words, "--help")
    assert code == 0
    assert f"Usage: hexkv {' '.join(words)}" in out


def test_a_registry_of_nothing_still_gives_help(monkeypatch, capsys):
    monkeypatch.setattr("hexkv.plugins.__main__.installed", Registry)
    assert main(["--help"]) == 0
    assert "demo" in capsys.readouterr().out


@each(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (33_558_528, "32 MiB"), (2**40, "1.0 TiB")],
)
def test_sizes_are_printed_for_people(size, text):
    assert human_size(size) == text


@each(
    ("size", "text"),
    [
        (5, 5),
        (0, 0),
        (2**10, "1KiB"),
        (22 * 2**30, "22GiB"),
        (64 * 10**9, "64GB"),
        (1536 * 2**20, "1536MiB"),
        (2**30 + 1, 2**30 + 1),
    ],
)
def test_a_size_is_written_as_it_may_be_read(size, text):
    assert exact_size(size) == text
    assert parse_size(text) == size


@each(("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (90, "2 min"), (7200, "2 h"), (2e5, "2 d")])
def test_ages_are_printed_for_people(seconds, text):
    assert human_age(seconds) == text
