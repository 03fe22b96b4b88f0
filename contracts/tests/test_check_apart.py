"""``hexkv check`` never touches live data: how it is alone, and when it refuses."""

import re
from contextlib import closing
from dataclasses import dataclass

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.check._targets import find
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.plugins import AdapterSpec
from hexkv.plugins.__main__ import main
from hexkv.plugins.discovery.registry import Origin, Registry
from hexkv.plugins.spec import CONTRACT
from hexkv.ports import ConfigError, Item, StoreBusy, Stored


@pytest.fixture
def check(capsys):
    """Runs the command: exit code, output, errors."""

    def check(*words):
        code = main(["check", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return check


@dataclass(frozen=True)
class Shelf:
    path: str = ""
    label: str = ""
    depth: int = 3


def shelving(isolate):
    """A registry with a store ``shelf``: a directory, and the chunks under a label in it.

    Each may be open once in a process, as some embedded databases are.
    """
    registry = Registry()
    in_use = set()

    class Once(DiskStore):
        def __init__(self, root):
            if root in in_use:
                raise StoreBusy(f"{root} is open in this process already")
            super().__init__(root)
            self.place = root
            in_use.add(root)

        def close(self):
            super().close()
            in_use.discard(self.place)

    def opened(settings, context):
        return Once(settings.path + (f"/of {settings.label}" if settings.label else ""))

    spec = AdapterSpec(
        "store", "shelf", "a directory", opened, Shelf, isolate=isolate, contract=CONTRACT
    )
    registry.offer(Origin("builtin", ""), [spec])
    return registry


def live(root):
    """The frames in a directory, as their files are."""
    return {path.name: path.read_bytes() for path in root.rglob("*.hexkv")}


@pytest.fixture
def library(tmp_path):
    """A directory of somebody's chunks, in which a file has been, too."""
    root = tmp_path / "live"
    with closing(DiskStore(root)) as store:
        store.write(
            [Item(chunk_key(name), memoryview(b"theirs" * 99)) for name in "ab"], deadline()
        )
    (root / "notes").write_text("mine")
    return root


ISOLATED = {
    "folder": {"path": "folder"},
    "file": {"path": "file"},
    "prefix": {"label": "prefix"},
    "a function": {"path": lambda path, mark: f"{path}/{mark}"},
    "keys": "keys",
}


@each("isolate", ISOLATED.values(), ISOLATED)
def test_a_check_is_alone_where_the_adapter_says_how(isolate, library):
    before, named = live(library), {"path": str(library)}
    target = find("shelf", shelving(isolate), named)
    with target.open(["sibling"]) as candidate:
        for store in filter(None, (candidate.subject, candidate.sibling)):
            assert list(store.scan()) == []
            written = store.write([Item(chunk_key("a"), memoryview(b"ours"))], deadline())
            assert list(written) == [Stored(4)]
        assert list(candidate.reopen().contains([chunk_key("a")], deadline())) == [True]
    assert live(library) == before
    assert (library / "notes").read_text() == "mine"
    assert list(library.parent.iterdir()) == [library]


@each(
    ("isolate", "settings", "message"),
    [
        (None, {"path": "live"}, "(AdapterSpec.isolate); --destructive checks it in the very"),
        (None, {"path": "live", "label": "x"}, "--destructive"),
        ({"label": lambda label, mark: label}, {"path": "live"}, "no place of its own"),
        ({"depth": lambda depth, mark: depth + 1}, {"path": "live"}, "no place of its own"),
    ],
)
def test_a_check_that_would_meet_data_of_others_is_refused(isolate, settings, message, library):
    before = live(library)
    registry = shelving(isolate)
    values = settings | {"path": str(library)}
    with (
        pytest.raises(ConfigError, match=re.escape(message)),
        find("shelf", registry, values).open(()),
    ):
        pass
    assert live(library) == before


def test_only_told_so_a_check_empties_the_place_that_the_settings_name(library, check, monkeypatch):
    monkeypatch.setattr("hexkv.contracts.check.command.installed", lambda: shelving(None))
    words = ["shelf", "--set", f"path={library}", "--level", "L0"]
    before = live(library)
    code, out, err = check(*words)
    assert (code, out) == (1, "")
    assert "--destructive" in err
    assert live(library) == before
    assert check(*words, "--destructive")[0] == 0
    assert live(library) == {}
    target = find("shelf", shelving(None), {"path": str(library)}, destructive=True)
    for _ in range(2):  # each test gets an empty one
        with target.open(()) as candidate:
            assert list(candidate.subject.scan()) == []
            item = Item(chunk_key("a"), memoryview(b"ours"))
            assert list(candidate.subject.write([item], deadline())) == [Stored(4)]
            assert list(candidate.reopen().contains([chunk_key("a")], deadline())) == [True]
    assert live(library) == {}
