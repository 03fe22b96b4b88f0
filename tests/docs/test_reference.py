"""The pages that list everything of a kind are whole, and those that are made are up to date."""

import dataclasses
import json
import re
import runpy
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import get_args

from pydantic_core import PydanticUndefined

from hexkv.operate.adjusting import OF_A_TIER, OTHERS
from hexkv.plugins.configuration.places import render
from hexkv.plugins.configuration.schema import EngineSettings, Section
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import Reason
from operating.documents import ROOT, table
from operating.installing import FOLDERS, project


def is_section(annotation):
    return isinstance(annotation, type) and issubclass(annotation, Section)


def configured(section, prefix=""):
    """Every key of the schema with its default, as the reference writes them."""
    for key, field in section.model_fields.items():
        annotation = field.annotation
        if is_section(annotation):
            yield from configured(annotation, f"{prefix}{key}.")
        elif listed := [a for a in get_args(annotation) if is_section(a)]:
            dumped = [item.model_dump(exclude_unset=True) for item in field.default]
            yield f"{prefix}{key}", json.dumps(dumped)
            yield from configured(listed[0], f"{prefix}{key}[].")
        elif (prefix, key) == ("tiers[].", "name"):
            yield f"{prefix}{key}", "the store's"
        elif field.is_required():
            yield f"{prefix}{key}", "required"
        else:
            default = field.default
            if default is PydanticUndefined:
                default = field.default_factory()
            if hasattr(default, "get_secret_value"):
                default = default.get_secret_value()
            yield f"{prefix}{key}", json.dumps(default)


OPERATIONS = ROOT / "docs" / "operations.md"


def test_the_reference_lists_every_key_with_its_default_and_how_it_changes():
    shown = {row[0]: row[1] for row in table(OPERATIONS, "key", "default")}
    assert shown == dict(configured(EngineSettings))
    known = {key: set() for key in dict(configured(EngineSettings))}
    for keys, _, restart in table(OPERATIONS, "to change", "do", "restart"):
        for pattern in re.split(r"[`, :]+", keys):
            for key in known:
                if fnmatchcase(key, pattern.replace("[", "[[]")):
                    known[key].add((len(pattern), restart))
    assert [key for key, rows in known.items() if not rows] == []
    live = {f"tiers[].{key}" for key in OF_A_TIER} | {*map(render, OTHERS), "tenants[].quotas"}
    nearest = {key: max(rows)[1] for key, rows in known.items()}
    assert {key for key, restart in nearest.items() if restart == "no"} == {"tiers", *live}


def test_the_reference_lists_every_setting_of_the_adapters_of_memory_and_disk():
    registry = discover()
    actual = []
    for (kind, adapter), spec in sorted(registry.adapters.items()):
        if registry.origin[kind, adapter].plugin in ("builtin", "local"):
            for field in dataclasses.fields(spec.settings):
                missing = field.default is dataclasses.MISSING
                default = "required" if missing else json.dumps(field.default)
                actual.append([adapter, field.name, default])
    shown = [row[:3] for row in table(OPERATIONS, "adapter", "setting", "default")]
    assert sorted(shown) == sorted(actual)


def test_the_reference_lists_every_command():
    shown = {row[0] for row in table(OPERATIONS, "command")}
    assert shown == {f"hexkv {name}" for name in discover().commands if "." not in name}


def test_the_reference_explains_every_reason():
    shown = [row[0] for row in table(OPERATIONS, "reason")]
    assert sorted(shown) == sorted(Reason)


def test_the_table_of_folders_names_every_distribution():
    page = ROOT / "docs" / "architecture.md"
    shown = {row[2] for row in table(page, "folder", "import", "distribution")}
    assert shown == {project(folder)["name"] for folder in FOLDERS}


def test_pages_and_pictures_that_are_made_are_as_their_sources_make_them():
    pictures = ROOT / "docs" / "pictures"
    for file, draw in runpy.run_path(str(pictures / "draw.py"))["PICTURES"].items():
        assert (pictures / f"{file}.svg").read_text() == draw(), "make pictures"
    reference = runpy.run_path(str(ROOT / "docs" / "site" / "configuration.py"))["page"]()
    assert re.findall(r"^`(.+)`\n: ", reference, re.MULTILINE) == [
        key for key, _ in configured(EngineSettings)
    ]
    status = runpy.run_path(str(ROOT / "docs" / "site" / "status.py"))
    assert (ROOT / "docs" / "status.md").read_text() == status["page"](), "make status"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for rows in status["sections"]().values():
        for row in rows:
            assert row.keys() <= {"what", "seen", "shown", "open"}
            assert (row["seen"] and row["shown"]) or row["open"], row["what"]
            for command in status["commands"](row):
                match command.split():
                    case ["make", target]:
                        assert target in targets, command
                    case ["pytest", *words]:
                        paths = [word for word in words if word not in ("-m", '""')]
                        assert [p for p in paths if not (ROOT / p).exists()] == [], command
                    case ["python", "-m", module, *_]:
                        assert find_spec(module), command
                    case _:
                        raise AssertionError(command)
