"""A marker in every secret that can be configured is found in no output."""

import logging
import pickle
import re
import traceback
from contextlib import suppress
from dataclasses import asdict, fields
from typing import get_type_hints

import pytest
from pydantic import SecretStr, TypeAdapter

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, PROMPT
from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.__main__ import main
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.schema import EngineSettings, Section
from hexkv.plugins.configuration.secret import Secret
from hexkv.plugins.configuration.settings import _log_once, parse_settings
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.observing.telemetry import render
from hexkv.ports import ConfigError, Deadline, Failed, Item
from processes import held_port

MARK = "mArKeD"
WORDS = {"password", "passwd", "passphrase", "secret", "secrets", "token", "credential"}
WORDS |= {"credentials", "key", "keys", "apikey", "auth", "login", "salt"}

PATHS = {("redis", "tls_key"), ("hexkv", "secret_file"), ("socket", "secret_file")}
PATHS |= {(name, "secret_file") for name in ("tcp", "shm", "nixl", "mooncake", "embedded")}
PATHS |= {(name, "secret_file") for name in ("static", "server")}
"""Settings that sound like secrets, and name files that hold them."""

REGISTRY = discover()
SPECS = list(REGISTRY.adapters.values())


def secrets_of(spec):
    """The names of a spec's secrets."""
    hints = get_type_hints(spec.settings)
    return [field.name for field in fields(spec.settings) if hints[field.name] is Secret]


def sections(section=EngineSettings):
    yield section
    for field in section.model_fields.values():
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, Section):
                yield from sections(part)


SHARED = {"tls", "tls_ca", "tls_certificate", "tls_client_ca", "tls_key", "tls_verify"}
SHARED |= {"secret", "secret_file", "username", "password", "access_key", "secret_key"}
SHARED |= {"session_token", "sentinel_username", "sentinel_password"}
SHARED |= {"traces_ca", "traces_authorization"}  # of a connection beside the listener's own
SOUNDS = re.compile(r"tls|ssl|cert|authorit|verify|(^|_)(ca|key|secret|token|pass\w*|user\w*)(_|$)")


def test_whatever_sounds_like_a_secret_or_tls_has_one_type_and_one_name_in_every_adapter():
    for spec in SPECS:
        names = {field.name for field in fields(spec.settings)}
        assert {name for name in names - {"users"} if SOUNDS.search(name)} <= SHARED, spec.name
        assert {*spec.renamed.values()} <= names
        assert not {*spec.renamed} & names
        hidden = secrets_of(spec)
        for field in fields(spec.settings):
            sounds = WORDS & set(field.name.split("_"))
            assert not sounds or field.name in hidden or (spec.name, field.name) in PATHS, field
    for section in sections():
        for name, field in section.model_fields.items():
            assert not WORDS & set(name.split("_")) or field.annotation is SecretStr, name
    assert sum(len(secrets_of(spec)) for spec in SPECS) >= 6, "the walk finds them"


@pytest.mark.thorough
def test_a_former_name_is_taken_for_one_release_with_one_line(caplog):
    renamed = [(spec, *names) for spec in SPECS for names in spec.renamed.items()]
    assert {"redis", "s3", "obstore", "server"} <= {spec.name for spec, *_ in renamed}
    urls = {"redis": "rediss://cache", "s3": "s3://bucket", "obstore": "s3://bucket"}
    for spec, former, name in renamed:
        _log_once.cache_clear()
        caplog.clear()
        given = {"url": urls[spec.name]} if spec.name in urls else {}
        given |= {"traces": "https://collector"} if former.startswith("traces") else {}
        both = [parse_settings(spec, given | {it: "ca.pem"}) for it in (name, former, former)]
        assert both[0] == both[1] == both[2]
        line = f"adapter {spec.name}: setting {former} is {name} now; the next release refuses it"
        assert caplog.messages == [line]
        with pytest.raises(ConfigError, match=rf"{former}: is {name} now, which is given, too"):
            parse_settings(spec, given | {name: "ca.pem", former: "ca.pem"})


def marked(spec):
    """Settings that lead to nobody, with a marker in every secret."""
    address = f"127.0.0.1:{held_port()}"
    urls = {"s3": "s3://bucket", "obstore": "s3://bucket"}
    url = urls.get(spec.name, f"{spec.schemes[0]}://{address}" if spec.schemes else "")
    found = {spec.url_setting: url} if url else {}
    if spec.kind == "admin":
        found["address"] = address
    if spec.name == "obstore":
        found["endpoint"] = f"http://{address}"
    if spec.name == "s3":
        found |= {"endpoint": f"http://{address}", "client": "http"}
    if spec.name == "nixl" and spec.kind == "store":
        found |= {"plugin": "OBJ", "bucket": "bucket", "endpoint": f"http://{address}"}
    return found | {name: f"{MARK}-{name}" for name in secrets_of(spec)}


HIDING = [spec for spec in SPECS if secrets_of(spec)]
STORES = [spec for spec in HIDING if spec.kind == "store"]


def told(error):
    """Everything that a traceback of *error* may show, chained errors' texts included."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    lines = [line for one in seen for line in traceback.format_exception(one, chain=False)]
    return "".join([*lines, *map(repr, seen), *(repr(vars(one)) for one in seen)])


@pytest.fixture
def out(caplog):
    """What was put out; checked at the end, with all that was logged meanwhile."""
    caplog.set_level(logging.DEBUG)
    found = []
    yield found
    assert found
    for text in (*map(str, found), caplog.text, *map(repr, (r.args for r in caplog.records))):
        assert MARK not in text, text[max(0, text.index(MARK) - 300) :][:400]


def test_no_form_of_the_settings_shows_a_secret(out):
    for spec in HIDING:
        settings = REGISTRY.parse(spec.kind, spec.name, marked(spec))
        values = [getattr(settings, name) for name in secrets_of(spec)]
        assert [MARK in value.reveal() for value in values] == [True] * len(values)
        kind = TypeAdapter(type(settings))
        out += [repr(settings), str(settings), f"{settings}", asdict(settings)]
        out += [kind.dump_python(settings), kind.dump_json(settings), *values]
        for name in secrets_of(spec):
            for wrong in ([MARK], {MARK: MARK}, f"{MARK}\0", f"{MARK}\ud800", f"{MARK}\n"):
                with suppress(ConfigError):
                    try:
                        REGISTRY.parse(spec.kind, spec.name, marked(spec) | {name: wrong})
                    except ConfigError as error:
                        out.append(told(error))
                        raise
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(settings)


def test_no_address_takes_a_password_nor_repeats_it(out):
    for spec in SPECS:
        for field in fields(spec.settings):
            if field.name in (spec.url_setting, "endpoint", "metadata") and spec.schemes:
                scheme = spec.schemes[0] if field.name == spec.url_setting else "http"
                wrong = {field.name: f"{scheme}://user:{MARK}@127.0.0.1:7"}
                with pytest.raises(ConfigError) as raised:
                    REGISTRY.parse(spec.kind, spec.name, marked(spec) | wrong)
                out.append(told(raised.value))


def configuration():
    tiers = [{"store": "memory"}]
    tiers += [{"store": spec.name, "settings": marked(spec)} for spec in STORES]
    (admin,) = [marked(spec) for spec in HIDING if spec.kind == "admin"]
    directory = REGISTRY.find("directory", "embedded")
    salts = {"model": {"salt": f"{MARK}-model"}, "tenants": [{"name": "a", "salt": f"{MARK}-a"}]}
    calls = {"lookup": 0.5, "retrieve": 0.5, "store": 0.5}
    sizes = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "deadlines": calls}
    reported = {"adapter": directory.name, "settings": marked(directory)}
    return sizes | salts | {"tiers": tiers, "directory": reported, "admin": admin}


def test_an_engine_whose_servers_are_not_there_says_no_secret(out):
    loaded = load(None, {}, configuration())
    settings = loaded.settings
    out += [repr(loaded), str(settings), settings.model_dump(), settings.model_dump_json()]
    kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
    with build(loaded, NAMESPACE, registry=REGISTRY) as engine:
        out += [engine.store(PROMPT, kv), engine.lookup(PROMPT), engine.retrieve(PROMPT, kv)]
        out += [engine.explain(PROMPT), repr(engine), engine.namespace, vars(engine)]
        engine.flush()
        out += [engine.health(), render(engine, engine.telemetry), engine.telemetry.snapshot()]
        soon = Deadline.after(SystemClock(), 0.5)
        for tier in engine._chunks.stack.tiers[1:]:
            (failed,) = tier.store.write([Item(chunk_key("a"), memoryview(b"x"))], soon)
            (missed,) = tier.store.read([chunk_key("a")], ListSink(), soon)
            out += [told(o.error) for o in (failed, missed) if isinstance(o, Failed)]
            out += [repr(tier.store), repr(vars(tier.store)), str(tier.store)]


def test_no_command_prints_a_secret(out, tmp_path, capsys, monkeypatch):
    path = tmp_path / "hexkv.yaml"
    path.write_text(TypeAdapter(dict).dump_json(configuration()).decode())  # which is YAML, too
    place = [spec.name for spec in STORES].index("redis") + 1
    monkeypatch.setenv(f"HEXKV_TIERS__{place}__SETTINGS__PASSWORD", MARK)
    for words in (
        *(("config", "show", "--config", path, *more) for more in ([], ["--json"], ["--origin"])),
        ("config", "show", "--config", path, "--origin", "--json"),
        ("adapters", "--json"),
        ("explain", "--help"),
        ("explain", "--dir", tmp_path, "--config", path, "--json", path),
    ):
        main([str(word) for word in words])
        out += capsys.readouterr()
    shown = re.findall(r"\*{8}", "".join(map(str, out)))
    assert len(shown) >= len(STORES) + 1


def test_a_secret_that_yaml_cannot_read_is_not_quoted(out, tmp_path):
    path = tmp_path / "hexkv.yaml"
    odd = [
        f"!{MARK} x",
        f"*{MARK}",
        f"&{MARK} &b",
        f'"{MARK}',
        f"[{MARK}",
        f"{{{MARK}: ",
        f"%{MARK}",
    ]
    odd += [f"!!{tag} {MARK}" for tag in ("int", "float", "bool", "timestamp", "binary", "null")]
    odd += [f"@{MARK}", f"!a!{MARK} x", f"'{MARK}'x", f"- {MARK}", f"{MARK}: {MARK}: x", f"|{MARK}"]
    odd += [f'"\\{MARK}"', f"{MARK}\t: \0"]
    for text in odd:
        path.write_text(f"tiers:\n- store: redis\n  settings:\n    password: {text}\n")
        for source, environ in ((path, {}), (None, {"HEXKV_MODEL__SALT": text})):
            try:
                load(source, environ)
            except ConfigError as error:
                out.append(told(error))
