"""Forty wrong inputs: each message has the file, the line, the key, and what to do about it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from hexkv.contracts.kit.cases import each
from hexkv.plugins import AdapterSpec
from hexkv.plugins.__main__ import main
from hexkv.plugins.cli.config import problems
from hexkv.plugins.cli.output import times
from hexkv.plugins.configuration import brief
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.for_editors import schema_of
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Origin
from hexkv.plugins.spec import CONTRACT
from hexkv.ports import InvalidRequest, KVLayout, LayerGroup

LIST = "should be a list: lines that begin with '- ' below it, or [...]"
SECTION = "should be a section, with some of its keys below it: "
WHOLE = "should be a whole number, without quotes"
NUMBER = "should be a number, without quotes"
TEXT = "should be a text (in quotes, if it looks like a number)"
DISK = "tiers:\n- store: disk\n  settings: "
MEMORY = "tiers:\n- store: memory\n  "

MESSAGES = [
    (
        "tiers: []",
        "tiers (from F:1): should have at least one item: a line that begins with '- ' below it",
    ),
    ("tiers: memory", f"tiers (from F:1): {LIST}"),
    ("tiers:", f"tiers (from F:1): {LIST}"),
    ("tiers:\n  store: memory", f"tiers (from F:1): {LIST}"),
    ("tiers:\n- memory", f"tiers[0] (from F:2): {SECTION}store, name, budget, policy, "),
    ("tiers:\n- budget: 1GiB", "tiers[0].store (from F:2): missing: there is no default"),
    (
        "tiers:\n- store: dsik",
        "tiers[0].store (from F:2): no store adapter 'dsik', did you mean 'disk'?",
    ),
    ("tiers:\n- store: disk", "tiers[0].settings.root (from F:2): missing: there is no default"),
    (DISK + "{root: 5}", f"tiers[0].settings.root (from F:3): {TEXT}"),
    (
        DISK + "{rot: x}",
        "tiers[0].settings.rot (from F:3): unknown key, did you mean 'root'? known: root, direct",
    ),
    (
        MEMORY + "policy: lur",
        "tiers[0].policy (from F:3): no policy adapter 'lur', did you mean 'lru'?",
    ),
    (MEMORY + "write: some", "tiers[0].write (from F:3): should be 'all', 'evicted' or 'none'"),
    (MEMORY + "promote: sure", "tiers[0].promote (from F:3): should be true or false"),
    (MEMORY + "serde: 5", f"tiers[0].serde (from F:3): {TEXT}"),
    (MEMORY + "min_reuse: 0.5", "tiers[0].min_reuse (from F:3): needs write: evicted"),
    (
        MEMORY + "breaker: {pause: 1h}",
        "tiers[0].breaker.pause (from F:3): is longer than longest_pause, 10 s",
    ),
    (
        MEMORY + "budget: 10",
        "tiers[0].budget (from F:3): 10 bytes do not hold one chunk of 256 tokens, which takes",
    ),
    (
        "tiers:\n- store: memory\n- store: memory",
        "tiers (from F:1): [0] and [1] are both called 'memory': give one of them another",
    ),
    (
        "pool:\n  byts: 1GiB",
        "pool.byts (from F:2): unknown key, did you mean 'bytes'? known: provider, bytes, settings",
    ),
    ("pool: 1GiB", f"pool (from F:1): {SECTION}provider, bytes, settings, poison"),
    (
        "pool:\n  bytes: 10",
        "pool.bytes (from F:2): 10 bytes do not hold one chunk of 256 tokens, which takes",
    ),
    (
        "pool:\n  bytes: 10 GB RAM",
        "pool.bytes (from F:2): '10 GB RAM' is no size: write a number of bytes, or 512MiB, 8GiB,",
    ),
    ("pool:\n  bytes: 1.5", f"pool.bytes (from F:2): {WHOLE}"),
    ("pool:\n  bytes: 10TiB", "pool.bytes (from F:2): more than the 64 GiB of memory that are"),
    (
        "pool:\n  settings: {huge_pages: 1}",
        "pool.settings.huge_pages (from F:2): should be true or false",
    ),
    (
        "deadlines:\n  retrieve: soon",
        "deadlines.retrieve (from F:2): 'soon' is no time: write a number of seconds, or 200ms,",
    ),
    (
        "deadlines:\n  retrieve: 1:30",
        "F:2: deadlines.retrieve: YAML counts numbers with colons in sixties: write seconds, or",
    ),
    ("deadlines:\n  retrieve: 0", "deadlines.retrieve (from F:2): should be greater than 0"),
    ("chunk:\n  size: '256'", f"chunk.size (from F:2): {WHOLE}"),
    ("chunk:\n  tail: 7", "chunk.tail (from F:2): does not divide size, 256 tokens"),
    ("hash: md5", "hash (from F:1): should be 'sha256', 'blake2b' or 'blake3'"),
    ("gigabytes: lots", f"gigabytes (from F:1): {NUMBER}"),
    (
        "gigabytes: 8\npool:\n  bytes: 1GiB",
        "gigabytes (from F:1): pool.bytes is given, too: leave one out",
    ),
    (
        "disk: /d\ntiers:\n- store: memory",
        "disk (from F:1): tiers are given, too: leave one out",
    ),
    ("node: node.sock", "node (from F:1): must be an absolute path"),
    (
        "node: /n\npool:\n  bytes: 1GiB",
        "pool (from F:2): is the node's to say, where `node` names one",
    ),
    (
        "admin:\n  address: somewhere",
        "admin.address (from F:2): 'somewhere' is neither an absolute path nor host:port",
    ),
    (
        "tenants:\n- name: a\n  salt: s\n  quotas: {disc: 1GiB}",
        "tenants[0].quotas.disc (from F:4): no tier has this name; tiers: memory",
    ),
    ("serdes:\n  far: {}", "serdes.far (from F:2): needs no_such_module (walk)"),
    ("a: 1\na: 2", "F:2: 'a' is given twice, first in line 1"),
    ("a: b: c", "F:1: a second ': ' in a line: put the text in quotes, or begin a new line"),
    ("- 1", "F:1: should be KEY: VALUE lines, not a list or a text"),
    ("pools: {}", "pools (from F:1): unknown key, did you mean 'pool'? known: gigabytes, disk"),
]


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.setattr("hexkv.plugins.cli.config.available_bytes", lambda: 64 << 30)
    monkeypatch.setattr(brief, "available_bytes", lambda: 64 << 30)
    monkeypatch.chdir(tmp_path)
    registry = discover()
    needs = {"requires": ("no_such_module",), "hint": "walk", "contract": CONTRACT}
    registry.offer(Origin("far", ""), [AdapterSpec("serde", "far", "", lambda s, c: None, **needs)])

    def call(text):
        (tmp_path / "F").write_text(text)
        return problems("F", registry)

    return call


def test_a_wrong_configuration_is_explained_by_place_and_remedy(check):
    assert len(MESSAGES) >= 40
    found = {text: "; ".join(check(text)[0]) for text, _ in MESSAGES}
    assert {t: m for t, m in found.items() if not m.startswith(dict(MESSAGES)[t])} == {}


def test_a_retired_policy_starts_as_another_with_one_line(check, monkeypatch):
    line = "adaptive was removed: arc takes its place"
    text = MEMORY + "policy: adaptive"
    assert check(text) == ([], [f"tiers[0].policy (from F:3): {line}"])
    assert load("F").settings.tiers[0].policy == "arc"
    name = "HEXKV_TIERS__0__POLICY"
    monkeypatch.setenv(name, "adaptive")
    assert check(MEMORY + "policy: lru") == ([], [f"tiers[0].policy (from env {name}): {line}"])


def test_a_budget_beyond_the_pool_is_doubted_and_not_refused(check):
    wrong, [doubt] = check("pool:\n  bytes: 1GiB\ntiers:\n- store: memory\n  budget: 4GiB")
    assert wrong == []
    where = "tiers[0].budget (from F:5): more than the pool has, which keeps the chunks"
    assert doubt == f"{where} of this tier: pool.bytes (from F:2) is 1 GiB"


@each(
    ("text", "code", "says"),
    [
        ("deadlines:\n  retrieve: 2min\n  lookup: 200ms", 0, "no problem"),
        ("tiers:\n- store: disk\n  settings: {root: /proc/none}", 1, "/proc/none cannot be used"),
        ("pool: 1", 1, "pool (from"),
    ],
)
def test_the_command_opens_all_and_its_exit_code_tells(text, code, says, tmp_path, capsys):
    file = tmp_path / "hexkv.yaml"
    file.write_text(text)
    assert main(["config", "check", str(file), "--open"]) == code
    said = capsys.readouterr()
    assert says in said.out + said.err


def test_the_schema_takes_what_loads_and_refuses_what_does_not(check, capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads(json.dumps(schema_of(discover().adapters)))
    validator = jsonschema.Draft202012Validator(schema)
    right = [
        {},
        {"gigabytes": 64, "disk": "/d"},
        {"pool": {"bytes": "8GiB"}, "deadlines": {"retrieve": "10s", "lookup": 1}},
        {"tiers": [{"store": "disk", "budget": 5, "settings": {"root": "/d"}}], "admin": {}},
        {"tiers": [{"store": "of another package", "settings": {"any": 1}}]},
    ]
    assert [case for case in right if not validator.is_valid(case)] == []
    wrong = [
        {"pools": {}},
        {"pool": {"bytes": True}},
        {"tiers": [{"store": "disk", "settings": {"rot": "/d"}}]},
        {"tiers": [{"store": "disk", "settings": {}}]},
        {"admin": {"adress": "/a"}},
    ]
    assert [case for case in wrong if validator.is_valid(case)] == []


def test_what_a_program_gives_is_named_with_the_type_that_is_meant():
    class dtype:  # noqa: N801 - as torch calls it
        __module__ = "torch"

    with pytest.raises(InvalidRequest, match=r"^KVLayout\.dtype is of type torch\.dtype, not of"):
        KVLayout(dtype(), ())
    with pytest.raises(
        InvalidRequest, match=r"^no dtype 'int8': one of float32, float16, bfloat16"
    ):
        KVLayout.attention("int8", layers=1, heads=1, key_width=8)
    with pytest.raises(InvalidRequest, match=r"LayerGroup\.layers is of type str, not of type int"):
        LayerGroup("2", ())


def test_commands_name_what_is_missing_as_help_does(capsys):
    for words, named in ((["export"], "ARCHIVE"), (["config", "check"], "FILE")):
        assert main(words) == 2
        assert f"Missing argument '{named}'" in capsys.readouterr().err


def test_an_address_of_administration_is_named_as_the_user_knows_it(capsys):
    assert main(["admin", "nowhere", "status"]) != 0
    says = "error: address: 'nowhere' is neither an absolute path nor host:port\n"
    assert capsys.readouterr().err == says


@each(("text", "seconds"), [("10", 10), ("0.5", 0.5), ("200ms", 0.2), ("2min", 120), ("1 h", 3600)])
def test_an_option_takes_a_time_with_or_without_a_unit(text, seconds):
    assert times(0.1, 3600)(text) == seconds


@each("text", ["soon", "10 apples", "nan", "50ms", "2h"])
def test_an_option_of_a_time_names_what_is_wrong(text, capsys):
    assert main(["top", "127.0.0.1:1", "--seconds", text]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Invalid value for '--seconds'" in said
    assert "is no time: write" in said or "is not at least 0.1 s, at most 3600 s" in said


def test_show_over_a_node_leaves_out_what_the_node_decides(tmp_path, capsys):
    file = tmp_path / "hexkv.yaml"
    file.write_text("node: /a/socket\n")
    assert main(["config", "show", "--json", "--config", str(file)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["node"] == "/a/socket"
    assert not {"pool", "tiers", "admin"} & shown.keys()
