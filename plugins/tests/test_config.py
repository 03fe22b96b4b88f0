"""The configuration: four layers, one schema, and messages that say where and what."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.plugins.configuration.config import known_keys, load
from hexkv.plugins.configuration.schema import EngineSettings, parse_size
from hexkv.plugins.configuration.sources import MAX_FILE_BYTES
from hexkv.ports import ConfigError

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@pytest.fixture
def write(tmp_path):
    def file(text):
        path = tmp_path / "hexkv.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return file


def test_without_any_layer_the_defaults_hold():
    loaded = load(environ={}, defaults={})
    assert loaded.settings == EngineSettings()
    assert loaded.settings.tiers[0].name == "memory"
    assert loaded.origin(("chunk", "size")) == "default"


def test_the_schemas_defaults_satisfy_the_schema():
    dumped = EngineSettings().model_dump(mode="json")
    assert EngineSettings.model_validate_json(json.dumps(dumped)) == EngineSettings()


@each("present", range(8))
def test_a_stronger_layer_wins_over_all_weaker_ones(present, write):
    path = write("chunk:\n  size: 16\n" if present & 1 else "hash: sha256\n")
    environ = {"HEXKV_CHUNK__SIZE": "32"} if present & 2 else {}
    overrides = {"chunk": {"size": 64}} if present & 4 else {}
    loaded = load(path, environ, overrides)
    expected = (64, "code") if present & 4 else (256, "default")
    if not present & 4 and present & 3:
        expected = (32, "env HEXKV_CHUNK__SIZE") if present & 2 else (16, f"{path}:2")
    assert (loaded.settings.chunk.size, loaded.origin(("chunk", "size"))) == expected


def test_layers_merge_sections_key_by_key(write):
    path = write("pool: {bytes: 8GiB}\n")
    loaded = load(path, {"HEXKV_POOL__POISON": "true"}, {"pool": {"provider": "huge"}})
    assert loaded.settings.pool.bytes == 8 * 2**30
    assert loaded.settings.pool.poison
    assert loaded.settings.pool.provider == "huge"


def test_a_list_of_tiers_replaces_the_list_below_with_its_origins(write):
    path = write("tiers:\n- store: a\n- store: b\n")
    loaded = load(path, {}, {"tiers": [{"store": "c"}]})
    assert [tier.store for tier in loaded.settings.tiers] == ["c"]
    assert loaded.origin(("tiers", 0, "store")) == "code"
    assert ("tiers", 1) not in loaded.origins


def test_the_environment_can_change_one_tier_and_add_the_next(write):
    path = write("tiers:\n- store: a\n- store: b\n  settings: {path: /old, size: 5}\n")
    environ = {
        "HEXKV_TIERS__1__SETTINGS__PATH": "/new",
        "HEXKV_TIERS__2__STORE": "c",
        "HEXKV_TIERS__2__BUDGET": "1.5 GB",
    }
    loaded = load(path, environ)
    assert loaded.settings.tiers[1].settings == {"path": "/new", "size": 5}
    assert loaded.settings.tiers[2].budget == 1_500_000_000
    assert loaded.origin(("tiers", 1, "settings", "size")) == f"{path}:4"
    assert loaded.origin(("tiers", 2, "store")) == "env HEXKV_TIERS__2__STORE"


def test_the_environment_can_add_more_than_ten_tiers_in_order():
    environ = {f"HEXKV_TIERS__{i}__STORE": f"s{i}" for i in range(12)}
    found = [tier.store for tier in load(None, environ).settings.tiers]
    assert found == [f"s{i}" for i in range(12)]


def test_a_section_from_the_environment_is_merged_like_one_from_a_file(write):
    path = write("pool: {bytes: 8MiB, poison: true}\n")
    loaded = load(path, {"HEXKV_POOL": "{poison: false}"})
    assert (loaded.settings.pool.bytes, loaded.settings.pool.poison) == (8 * 2**20, False)
    assert loaded.origin(("pool", "bytes")) == f"{path}:1"


def test_environment_values_are_read_as_yaml_where_no_text_is_wanted():
    environ = {
        "HEXKV_TIERS__0__SETTINGS": "{a: [1, two], b: null}",
        "HEXKV_TIERS__0__SERDE": "[zstd, raw]",
        "HEXKV_TIERS__0__BUDGET": "null",
        "HEXKV_DEADLINES__LOOKUP": "0.25",
        "HEXKV_POOL__SETTINGS__LIST": "[1]",
        "HEXKV_POOL__SETTINGS__LIST__1": "2",
        "UNRELATED": "[",
    }
    settings = load(None, environ).settings
    assert settings.tiers[0].settings == {"a": [1, "two"], "b": None}
    assert settings.tiers[0].serdes == ("zstd", "raw")
    assert settings.tiers[0].budget is None
    assert settings.deadlines.lookup == 0.25
    assert settings.pool.settings == {"list": [1, "2"]}


@given(WORDS)
def test_text_of_the_environment_is_taken_as_it_is(text):
    environ = {
        "HEXKV_MODEL__NAME": text,
        "HEXKV_MODEL__SALT": text,
        "HEXKV_MODEL__EXTRA__NOTE": text,
        "HEXKV_TIERS__0__SETTINGS__PASSWORD": text,
    }
    settings = load(None, environ).settings
    assert settings.model.name == settings.model.extra["note"] == text
    assert settings.model.salt.get_secret_value() == text
    assert settings.tiers[0].settings == {"password": text}


def test_a_tilde_is_the_home_directory_wherever_a_file_is_named(write, monkeypatch):
    path = write("node: ~/node.sock\n")
    monkeypatch.setenv("HOME", str(path.parent))
    assert load("~/hexkv.yaml", {}).settings.node == str(path.parent / "node.sock")
    assert load(None, {"HEXKV_CONFIG": "~/hexkv.yaml"}).origins["node",] == f"{path}:1"
    with pytest.raises(ConfigError, match=r"no-such-user.*no home directory"):
        load("~no-such-user/hexkv.yaml", {})
    with pytest.raises(ConfigError, match=r"segments\.record .*no home directory"):
        load(None, {"HEXKV_SEGMENTS__RECORD": "~no-such-user/record"})


def test_the_file_can_be_named_by_the_environment_but_an_argument_wins(write, tmp_path):
    path = write("chunk: {size: 16}")
    other = tmp_path / "other.yaml"
    other.write_text("# nothing\n")
    assert load(None, {"HEXKV_CONFIG": str(path)}).settings.chunk.size == 16
    assert load(other, {"HEXKV_CONFIG": str(path)}).settings.chunk.size == 256


@each(
    ("environ", "message"),
    [
        (
            {"HEXKV_POOL__BYTE": "1"},
            r"pool\.byte \(from env HEXKV_POOL__BYTE\): unknown key, did you mean 'bytes'\?",
        ),
        ({"HEXKV_POOLS": "{}"}, r"pools \(from env HEXKV_POOLS\): unknown key, .* 'pool'\?"),
        ({"HEXKV_CHUNK__SIZE": "many"}, r"chunk\.size \(from env HEXKV_CHUNK__SIZE\): should be"),
        ({"HEXKV_CHUNK__SIZE": "'256'"}, r"chunk\.size .*should be a whole number"),
        ({"HEXKV_CHUNK__SIZE": "0"}, r"chunk\.size .*greater than or equal to 1"),
        ({"HEXKV_POOL__BYTES": "8 GiBs"}, r"pool\.bytes .*'8 GiBs' is no size"),
        ({"HEXKV_POOL__BYTES": "true"}, r"pool\.bytes .*should be a whole number"),
        ({"HEXKV_POOL__BYTES": "-1"}, r"pool\.bytes .*greater than 0"),
        ({"HEXKV_POOL__BYTES": "["}, r"env HEXKV_POOL__BYTES:1: "),
        ({"HEXKV_DEADLINES__LOOKUP": ".inf"}, r"deadlines\.lookup .*finite"),
        ({"HEXKV_HASH": "md5"}, r"hash \(from env HEXKV_HASH\): should be 'sha256', 'blake2b' or"),
        ({"HEXKV_COMPUTE_RATE": "2024-01-01"}, r"HEXKV_COMPUTE_RATE:1: YAML takes it for a date"),
        ({"HEXKV_INSTANCE__ID": "@x"}, r"instance \(from env HEXKV_INSTANCE__ID\): unknown key"),
        ({"HEXKV_TIERS__5__STORE": "x"}, r"tiers \(from env .*'5' is no position in a list of 1"),
        ({"HEXKV_TIERS__" + "9" * 5000: "x"}, r"tiers .* is no position"),
        ({"HEXKV_TIERS__FIRST": "x"}, r"tiers \(from env .*'first' is no position"),
        ({"HEXKV_HASH__NAME": "x", "HEXKV_HASH": "y"}, r"hash \(from env .*is a value, not a"),
        ({"HEXKV_POOL____BYTES": "x"}, r"HEXKV_POOL____BYTES: names nothing"),
        ({"HEXKV_TIERS": "[]"}, r"tiers \(from env HEXKV_TIERS\): .*at least one item"),
        ({"HEXKV_CONFIG": "no/such/file"}, r"no/such/file: cannot be read: No such file"),
        ({"HEXKV_CONFIG": "."}, r"cannot be read: Is a directory"),
        (
            {"HEXKV_TIERS__1__STORE": "memory"},
            r"tiers: \[0\] and \[1\] are both called 'memory'",
        ),
    ],
)
def test_a_bad_environment_is_an_error_that_names_the_variable(environ, message):
    with pytest.raises(ConfigError, match=message):
        load(None, environ)


@each(
    ("text", "message"),
    [
        (
            "tiers:\n- store: disk\n  budgt: 1\n",
            r"\[0\]\.budgt \(from .*hexkv.yaml:3\): unknown ke",
        ),
        ("tiers:\n- budget: 1\n", r"tiers\[0\]\.store \(from .*hexkv\.yaml:2\): missing: there is"),
        ("tiers:\n- store: 7\n", r"tiers\[0\]\.store \(from .*hexkv\.yaml:2\): should be a text"),
        ("tiers: {}\n", r"tiers \(from .*:1\): should be a list"),
        ("chunk:\n  size: 1\n  size: 2\n", r"hexkv.yaml:3: 'size' is given twice, first in line 2"),
        ("a: &x 1\nb: *x\n", r"hexkv.yaml:1: aliases are not supported"),
        ("- 1\n", r"should be KEY: VALUE lines"),
        ("[1]: 2\n", r"a key must be a word"),
        ("a: !!python/object/apply:os.system [ls]\n", r"hexkv.yaml:1: tag.* is not supported"),
        (
            "a: !!python/name:os.system\n",
            r"hexkv.yaml:1: tag that is not known: write what",
        ),
        ("a: !!set {b, c}\n", r"is not supported"),
        ("a: {b: !!int x}\n", r"hexkv.yaml:1: a.b: does not match its tag"),
        ("chunk:\n  size: " + "9" * 5000, r"yaml:2: chunk.size: .* or is too long a number"),
        ("a: 2024-01-01\n", r"hexkv.yaml:1: a: YAML takes it for a date: write it in quotes"),
        ("pool: {bytes: 0400}\n", r"hexkv.yaml:1: pool.bytes: .* octal number: leave the 0"),
        ("a: *hush\n", r"hexkv.yaml:1: alias that is not known: write what begins with \* in"),
        (
            "deadlines:\n  lookup: 1:30\n",
            r"yaml:2: deadlines.lookup: YAML counts numbers with colons in sixties: write seconds",
        ),
        (
            "tiers:\n- store: memory\n  breaker: {pause: 60}\n",
            r"tiers\[0\]\.breaker\.pause \(from .*:3\): is longer than longest_pause, 10 s",
        ),
        ('tiers: [{store: disk, settings: {root: "a\\0b"}}]', r"\[0\]\.settings\.root .* NUL"),
        ("a: 1\n---\nb: 2\n", r"hexkv.yaml:2: "),
        ("\tx", r"hexkv.yaml:1: "),
        (b"\xff", r"is not UTF-8"),
        ("[" * 3000, r"nested too deeply"),
        (b"#" * (MAX_FILE_BYTES + 1), r"larger than 256 KiB"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_line(text, message, write):
    with pytest.raises(ConfigError, match=message):
        load(write(text), {})


ENDLESS = {}
ENDLESS["a"] = ENDLESS


@each(
    ("overrides", "message"),
    [
        ({"pol": {}}, r"pol \(from code\): unknown key, did you mean 'pool'\?"),
        ({"chunk": {"size": object()}}, r"chunk\.size \(from code\): .*holds no object"),
        ({"chunk": {"size": 10**5000}}, r"chunk\.size \(from code\): .* at most 64 bits"),
        ({"model": {"extra": ENDLESS}}, r"model\.extra\..*nested deeper than 32 levels"),
        ({"model": {1: "x"}}, r"model \(from code\): a key must be a word"),
        ({"tiers": [{"stor": "x"}]}, r"tiers\[0\]\.stor \(from code\): unknown key, .*'store'\?"),
    ],
    ids=lambda case: case[1],
)
def test_a_bad_override_is_an_error_too(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(None, {}, overrides)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError, match=r"chunk\.siz .*; hash .*"):
        load(None, {"HEXKV_CHUNK__SIZ": "1", "HEXKV_HASH": "md5"})


def test_paths_and_tuples_are_welcome_in_code(tmp_path):
    loaded = load(None, {}, {"tiers": ({"store": "disk", "settings": {"root": tmp_path}},)})
    assert loaded.settings.tiers[0].settings == {"root": str(tmp_path)}


def test_a_salt_is_not_printed():
    settings = load(None, {"HEXKV_MODEL__SALT": "hush"}).settings
    assert "hush" not in repr(settings) + settings.model_dump_json()


def test_the_settings_of_adapters_are_neither_printed_nor_dumped():
    tier = {
        "store": "redis",
        "settings": {"password": "hush", "others": ["hush"], "connections": 3},
    }
    pool = {"settings": {"token": "hush"}}
    serdes = {"zstd": {"key": "hush"}}
    loaded = load(None, {}, {"tiers": [tier], "pool": pool, "serdes": serdes})
    settings = loaded.settings
    dumped = settings.model_dump_json()
    assert "hush" not in "".join([repr(loaded), repr(settings), str(settings), dumped])
    assert settings.tiers[0].settings == tier["settings"]
    assert "hush" not in str(settings.model_dump())


def test_known_keys_follow_the_schema():
    assert "store" in known_keys(("tiers", 3))
    assert known_keys(("chunk",)) == ["size", "tail", "longest_prompt", "seeded"]


UNITS = {"": 1, "B": 1, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9,
         "GiB": 2**30, "TB": 10**12, "TiB": 2**40, "PB": 10**15, "PiB": 2**50}  # fmt: skip


@given(st.integers(0, 10**9), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit(number, unit, space):
    assert parse_size(f"{number}{space}{unit}".strip()) == number * UNITS[unit]


@each("text", ["", "GiB", "1.5", "0.3B", "1e3", "-1", "1 kib", "1_0", "٣"])
def test_what_is_no_whole_number_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_size(text)


@given(st.dictionaries(WORDS, WORDS, max_size=4))
def test_whatever_the_environment_holds_the_answer_is_a_configuration_or_a_clear_error(variables):
    environ = {f"HEXKV_{name}": value for name, value in variables.items() if name != "CONFIG"}
    try:
        load(None, environ)
    except ConfigError as error:
        assert str(error)  # noqa: PT017 - either is fine, nothing else is
    else:
        assert not environ


@each(
    ("names", "salts", "message"),
    [
        ("aa", ("red", "blue"), r"\[0\] and \[1\] are both called 'a'"),
        ("ab", ("red", "red"), r"\[0\] and \[1\] have the same salt: give"),
    ],
)
def test_tenants_that_nothing_tells_apart_are_refused_without_their_salts(names, salts, message):
    tenants = [{"name": n, "salt": s} for n, s in zip(names, salts, strict=True)]
    with pytest.raises(ConfigError, match=message) as caught:
        load(None, {}, {"tenants": tenants})
    assert "red" not in str(caught.value)
