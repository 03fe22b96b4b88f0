"""A configuration of LMCache becomes one of hexkv, and what cannot is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from hexkv.adapters.lmcache.configuration import KNOWN, convert
from hexkv.contracts.kit.cases import each
from hexkv.plugins.__main__ import main
from hexkv.plugins.configuration.config import load

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "from-lmcache.md").read_text()


def test_the_pages_example_becomes_what_the_page_shows(tmp_path):
    [theirs] = re.findall(r"^    chunk_size.*?(?=\n\n)", PAGE, re.DOTALL | re.MULTILINE)
    [ours] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    made = convert(yaml.safe_load("\n".join(line[4:] for line in theirs.splitlines())))
    assert made.lossless
    shown, found = yaml.safe_load(ours), made.values
    shown["tiers"][1]["settings"]["root"] = "/var/cache/lmcache/"  # the page runs anywhere
    assert (found["pool"], found["tiers"]) == (shown["pool"], shown["tiers"])


def test_every_key_of_lmcache_is_converted_or_has_a_note():
    shown = {
        name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for name in _keys(row)
    }
    assert shown == KNOWN
    for source in ROOT.glob(".venv/lmcache/lmcache/v1/config.py"):
        [keys] = [
            {key.value for key in node.value.keys}
            for node in ast.walk(ast.parse(source.read_text()))
            if isinstance(node, ast.AnnAssign) and node.target.id == "_CONFIG_DEFINITIONS"
        ]
        assert keys == KNOWN


def _keys(row):
    return re.findall(r"`(\w+)`", row)


@each(
    ("given", "tier"),
    [
        ({"remote_url": "lm://10.0.0.1:65432"}, {"store": "lm"}),
        (
            {"remote_url": "fs://host:0/shared/kv"},
            {"store": "fs", "settings": {"root": "/shared/kv"}},
        ),
        (
            {"remote_url": "redis-cluster://u:p@a:1,b:2", "remote_serde": "cachegen"},
            {
                "serde": "cachegen",
                "settings": {"url": "redis://u:p@a:1", "topology": "cluster", "others": ["b:2"]},
            },
        ),
        ({"local_disk": "/a,file:///b", "max_local_disk_size": 10}, {"budget": "5GiB"}),
        ({"local_disk": "/a", "cache_policy": "LFU"}, {"policy": "lfu"}),
        ({"local_disk": "/a", "store_location": "LocalCPUBackend"}, {"write": "none"}),
        ({"gds_path": "/a"}, {"store": "gds", "settings": {"root": "/a"}}),
    ],
)
def test_a_tier_is_converted_with_its_rules(given, tier):
    made = convert(given)
    load(environ={}, overrides=made.values)
    last = made.values["tiers"][-1]
    assert {key: last[key] for key in tier} == tier


def test_times_have_hexkvs_units_and_lmcaches_names():
    made = convert({"lookup_timeout_ms": 500, "blocking_timeout_secs": 3, "pin_timeout_sec": 9})
    assert made.values["deadlines"] == {"lookup": 0.5, "retrieve": 3, "store": 3, "pin": 9}


@pytest.fixture
def run(tmp_path, capsys):
    def call(text):
        file = tmp_path / "lmcache.yaml"
        file.write_text(text)
        code = main(["config", "from-lmcache", str(file)])
        out, err = capsys.readouterr()
        return code, out, err.replace(str(file), "FILE")

    return call


def test_the_command_prints_a_configuration_and_notes_what_it_left_out(run, tmp_path):
    code, out, err = run("chunk_size: 128\nnuma_mode: auto\nuse_layerwise: true\nlocal_dsk: /a\n")
    assert code == 1
    (tmp_path / "hexkv.yaml").write_text(out)
    assert load(tmp_path / "hexkv.yaml", {}).settings.chunk.size == 128
    numa, layers, misspelt = err.splitlines()
    assert numa.startswith("FILE:2: numa_mode: set by hand: the pool `pinned`")
    assert layers == "FILE:3: use_layerwise: not needed: engines that load layer by layer do"
    assert misspelt.startswith("FILE:4: local_dsk: no key of LMCache, did you mean 'local_disk'?")
    assert run("chunk_size: 256\nuse_layerwise: true\n")[0] == 0


@each(
    ("text", "says"),
    [
        ("local_cpu: false", "no tier is left"),
        ("max_local_cpu_size: big", "max_local_cpu_size: should be a number"),
        ("chunk_size: [1]", "chunk.size"),
        ("- 1", "should be KEY: VALUE lines"),
        ("local_disk: true", "local_disk: should be the path of a directory"),
    ],
)
def test_what_lmcache_would_not_take_either_is_wrong_usage(run, text, says):
    code, out, err = run(text)
    assert (code, out) == (2, "")
    assert says in err
