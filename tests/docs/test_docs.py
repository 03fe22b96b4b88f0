"""What is written about the code stays true."""

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.fixtures import FixtureFunctionDefinition

import hexkv.core
import hexkv.plugins
import hexkv.ports
from depth import thorough
from hexkv.contracts.kit.cases import each
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import Hooks
from hexkv.ports import DType, KVLayout, Namespace, errors
from operating.documents import FENCE, ROOT, blocks, name, table
from processes import held_port

DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("*/*/*.md"))
    if not path.relative_to(ROOT).parts[0].startswith(".")
)
PAGES = [path for path in DOCUMENTS if path.parent in (ROOT, ROOT / "docs")]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("0*.md"))
NOTES = sorted((ROOT / "docs" / "notes").glob("0*.md"))
MODULES = sorted(
    module.name
    for package in (hexkv.ports, hexkv.core, hexkv.plugins)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)
TINY = Namespace("toy", KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8))
QUOTE = re.compile(r"^`(examples/[^`]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_examples_in_docstrings_run():
    # To look for examples in modules that have none takes seconds.
    having = [m for m in MODULES if ">>>" in Path(find_spec(m).origin).read_text()]
    failed = [m for m in having if doctest.testmod(importlib.import_module(m)).failed]
    assert failed == []


def test_the_error_tree_is_drawn_as_it_is():
    drawn, way = {}, []
    for indent, mark in re.findall(r"^ {4}( *)[*x+-] (\w+)", errors.__doc__, flags=re.MULTILINE):
        way = [*way[: len(indent) // 2], mark]
        drawn[mark] = way[-2] if len(way) > 1 else "Exception"
    classes = inspect.getmembers(errors, inspect.isclass)
    assert drawn == {name: found.__bases__[0].__name__ for name, found in classes}


def test_every_hook_is_documented():
    hooks = inspect.getmembers(Hooks, inspect.isfunction)
    assert hooks
    for hook, function in hooks:
        assert function.__doc__, hook


def test_every_public_name_of_the_ports_is_documented():
    for public in hexkv.ports.__all__:
        found = getattr(hexkv.ports, public)
        if inspect.isclass(found):
            assert found.__doc__, public


def test_the_package_of_the_ports_says_in_which_order_to_read_its_modules():
    listed = re.findall(r"^\d+\. ``(\w+)``", hexkv.ports.__doc__, flags=re.MULTILINE)
    folder = Path(hexkv.ports.__file__).parent
    assert sorted(listed) == sorted(path.stem for path in folder.glob("[!_]*.py"))
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert folders == folders & set(re.findall(r"``(\w+)``", hexkv.ports.__doc__))


def test_links_lead_somewhere():
    broken = [
        f"{name(path)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
        if not target.startswith(("http://", "https://")) and not (path.parent / target).exists()
    ]
    assert broken == []


@each("path", DECISIONS, ids=name)
def test_a_decision_has_its_parts_and_fits_a_page(path):
    text = path.read_text()
    assert text.startswith(f"# {int(path.name[:4])}. ")
    assert len(text.splitlines()) <= 50
    found = re.findall(r"^(?:## (\w+)|(Status): \w+)", text, flags=re.MULTILINE)
    assert [a or b for a, b in found] == ["Status", "Context", "Decision", "Consequences"]
    assert path.name in (ROOT / "docs" / "architecture.md").read_text()


@each("path", NOTES, ids=name)
def test_a_note_names_the_decision_that_it_belongs_to_or_what_superseded_it(path):
    number, text = int(path.name[:4]), path.read_text()
    assert text.startswith(f"# {number}. ")
    known = r"^Status: (?:measurements; the decision is in|note;|superseded by) "
    assert re.search(known, text, flags=re.MULTILINE)


def test_a_number_of_a_decision_is_given_once_and_leads_to_one_place():
    index = ROOT / "docs" / "adr" / "README.md"
    moved = {int(number): where for number, _, where in table(index, "number", "decision")}
    binding = [int(path.name[:4]) for path in DECISIONS]
    assert len({*binding, *moved}) == len(binding) + len(moved)
    assert {*range(1, max(moved) + 1)} <= {*binding, *moved}
    for number, where in moved.items():
        target = index.parent / re.search(r"\]\(([^)#]+)", where).group(1)
        assert re.search(rf"^#+ {number}\. ", target.read_text(), re.MULTILINE), number
    for path in NOTES:
        assert path.name in moved[int(path.name[:4])]


def test_the_tutorial_quotes_every_file_of_its_package_as_it_is():
    quoted = dict(QUOTE.findall((ROOT / "docs" / "writing-an-adapter.md").read_text()))
    package = ROOT / "examples" / "acme-tape"
    written = {name(p) for kind in ("*.py", "*.toml") for p in package.rglob(kind)}
    assert set(quoted) == written
    for path, text in quoted.items():
        assert text == (ROOT / path).read_text(), path


def given(contract):
    """What an author may give a contract: fixtures of its base, and attributes of its class."""
    found = set()
    for base in contract.__mro__:
        if base.__module__.endswith("._base") or base is contract:
            found |= {
                name
                for name, value in vars(base).items()
                if isinstance(value, FixtureFunctionDefinition) and name not in KITS_OWN
            }
        found |= {
            name
            for name, kind in vars(base).get("__annotations__", {}).items()
            if str(kind).startswith("ClassVar")
        }
    return found


KITS_OWN = {
    *{"restless", "same", "chunk", "allocate", "registry", "open_end", "near", "far"},
    *{"first", "opened", "three"},
}
"""Fixtures that a contract makes of what it was given."""


def test_the_guide_names_everything_that_an_author_may_give_a_contract():
    guide = ROOT / "docs" / "writing-an-adapter.md"
    listed, contract = {}, ""
    for row in table(guide, "contract, in `hexkv.contracts`", "fixture", "is", "for"):
        contract = row[0] or contract
        words = re.findall(r"\w+", row[1].replace("*", " "))
        listed.setdefault(contract, set()).update(words)
    assert len(listed) == 22
    for contract, words in listed.items():
        module, _, cls = contract.rpartition(".")
        found = given(getattr(importlib.import_module(f"hexkv.contracts.{module}"), cls))
        assert words == found, contract


LONG = [ROOT / "docs" / "writing-an-adapter.md", ROOT / "docs" / "blending.md"]
"""Take as long as all others. In make test `test_check.py` of the contracts checks the package of
the one, and `test_blending_calibrate.py` makes the calls of the other."""

WITH_CODE = [path for path in PAGES if path not in LONG and any(kind for kind, _ in blocks(path))]


@pytest.mark.parametrize("path", [*WITH_CODE, *thorough(*LONG)], ids=name)
def test_the_code_of_a_document_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    """A ``yaml`` block is the file that its first line names; ``console`` runs ``$`` lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HEXKV_DEADLINES__LOOKUP", "60")  # what is shown needs no idle machine
    text = path.read_text()
    for quote in QUOTE.finditer(text):
        text = text.replace(quote.group(), "")
    scope = {}
    for language, code in FENCE.findall(text):
        if language == "yaml":
            file = re.match(r"# (\S+\.yaml)\n", code)[1]
            Path(file).write_text(code)
        elif language == "python":
            exec(compile(code, name(path), "exec"), scope)
        elif language == "console":
            for line in re.findall(r"^\$ (.*)$", code, flags=re.MULTILINE):
                run(line)
        else:
            assert language == "", f"no test runs {language}"


def run(line):
    if line == "hexkv demo":  # minutes long, and has tests of its own
        assert "demo" in discover().commands
        return
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


CONFIGURATIONS = [(path, code) for path in PAGES for kind, code in blocks(path) if kind == "yaml"]


@each(
    ("path", "code"),
    CONFIGURATIONS,
    ids=[f"{name(path)} {code.split(maxsplit=2)[1]}" for path, code in CONFIGURATIONS],
)
def test_a_configuration_that_is_shown_can_be_built(path, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shown.yaml").write_text(code)
    for file in re.findall(r"secret_file: (\w+)", code):
        Path(file).write_text("a secret of the tests")
        Path(file).chmod(0o600)
    # The machine that tests need not have the memory that a server has.
    small = {} if "gigabytes:" in code else {"pool": {"bytes": "1MiB"}}
    loaded = load("shown.yaml", environ={}, overrides=small)
    places = [name for name in loaded.settings.observe if name != "traces"]
    if served := {name: f"127.0.0.1:{held_port()}" for name in places}:
        loaded = load("shown.yaml", environ={}, overrides=small | {"observe": served})
    with build(loaded, TINY) as engine:
        assert [tier.name for tier in engine.health().tiers] == [
            tier.name for tier in loaded.settings.tiers
        ]


EXAMPLES = sorted(
    path
    for folder in ("docs", "examples", "adapters", "plugins", "README.md")
    for path in ((ROOT / folder).rglob("*") if (ROOT / folder).is_dir() else [ROOT / folder])
    if path.suffix in (".md", ".yaml", ".json", ".service")
)


def test_no_example_says_which_weights_a_model_has():
    """A label that is copied from an example would be the same for all weights."""
    said = re.compile(r"^\s*\"?model\"?:\s*\{?\s*\"?(revision|weights)\"?:", re.MULTILINE)
    assert [name(path) for path in EXAMPLES if said.search(path.read_text())] == []


@pytest.mark.thorough
def test_a_page_installs_from_an_index_first_and_from_a_clone_second():
    clone = re.compile(r"make (?:into|demo)|pip install \.|git clone")
    late = [
        name(path)
        for path in PAGES
        if path.name not in ("CONTRIBUTING.md", "CHANGELOG.md", "status.md")
        and (found := clone.search(path.read_text()))
        and re.search(r"pip install \"?hexkv", path.read_text()[: found.start()]) is None
    ]
    assert late == []


def test_the_readme_fits_a_minute():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 90
    commands = {line.strip().partition("#")[0].strip() for line in text.splitlines()}
    assert {"make demo", "make test"} <= commands


def test_the_glossary_points_at_what_exists():
    rows = table(ROOT / "docs" / "glossary.md", "term", "meaning")
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=str.casefold)
    for _, _, place in rows:
        if place:
            resolve(place)


def resolve(place):
    parts = place.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(place)


def test_the_documents_name_modules_and_files_that_exist():
    for path in DOCUMENTS:
        text = path.read_text()
        for place in re.findall(r"`(hexkv(?:\.\w+)+)`", text):
            resolve(place)
        for file in re.findall(r"`((?:core|ports|plugins|tests|adapters)/[\w/.-]+\.\w+)`", text):
            assert (ROOT / file).exists(), f"{name(path)}: {file}"
