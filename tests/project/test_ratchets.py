"""Figures of the project that only shrink.

A test fails when a figure grows, and when it is lower than its entry in
``tests/data/ratchets.json``: then the change that made it smaller lowers the entry.
"""

import ast
import importlib
import io
import json
import re
import sys
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from counting import no_collection
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import DType, KVLayout, Namespace

ROOT = Path(__file__).parents[2]
LIMITS = json.loads((Path(__file__).parents[1] / "data" / "ratchets.json").read_text())
MODULES_OF_A_FOLDER = 15
CLASSES_OF_A_NAME = 2
PRODUCT = sorted(
    path
    for pattern in ("*/hexkv", "plugins/*/hexkv", "adapters/*/hexkv")
    for top in ROOT.glob(pattern)
    for path in top.rglob("*.py")
)
OTHERS = sorted(path for top in ("benchmarks", "tests") for path in (ROOT / top).rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in PRODUCT}


def held(figures, limits):
    """Every figure at its limit: one above it grew, one below it is to be written down."""
    assert {k: v for k, v in figures.items() if v > limits.get(k, 0)} == {}, "these grew"
    assert {k: v for k, v in limits.items() if v > figures.get(k, 0)} == {}, (
        "these shrank: lower them in tests/data/ratchets.json"
    )


def test_no_folder_has_more_modules_than_before():
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in PRODUCT + OTHERS)
    held({k: v for k, v in counts.items() if v > MODULES_OF_A_FOLDER}, LIMITS["modules"])


def test_no_name_of_a_class_is_used_more_often_than_before():
    counts = Counter(
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    held({k: v for k, v in counts.items() if v > CLASSES_OF_A_NAME}, LIMITS["classes"])


# ----------------------------------------------------------------------------------- words

PRIVATE = re.compile(
    r"\b(?:nobody|somebody|whoever|told|met|likewise|in vain|by and by|meanwhile|says|said"
    r"|who (?:has|is|was|are|takes|asks|wants|does|can|may)|what (?:is|was|are)"
    r"|(?:any|no) more|so (?:many|much))\b",
    re.IGNORECASE,
)
"""Words that name no thing and no action: the field's prose has almost none of them."""


def prose(path):
    """Docstrings, comments, and literals of several words: messages, help, log lines."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def room(path):
    """The distribution or top-level package of a file: ``core``, ``adapters/vllm``."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: parts.index("hexkv")])


def test_no_room_has_more_private_words_than_before():
    counts = Counter()
    for path in PRODUCT:
        counts[room(path)] += sum(len(PRIVATE.findall(text)) for text in prose(path))
    held(counts, LIMITS["words"])


# ------------------------------------------------------------------------------ references

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc|obj):`~?([^`<]+)`")


@cache
def module(name):
    """The module of that name; None where its host is not installed, or there is none."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def has(owner, names):
    """True if *names* lead from *owner* to an attribute, one after another."""
    for name in names:
        if name in getattr(owner, "__annotations__", {}):
            return True
        owner = getattr(owner, name, None)
    return owner is not None


def is_known(target, path):
    """True if *target* names a thing of its file, of a class there, of the ports, or anywhere."""
    names = target.split(".")
    if names[0] == "hexkv":
        return any(has(module(".".join(names[:end])), names[end:]) for end in range(2, 6))
    parts = path.relative_to(ROOT).with_suffix("").parts
    own = module(".".join(parts[parts.index("hexkv") :]).removesuffix(".__init__"))
    if own is None:
        return names[0] in {getattr(node, "name", None) for node in ast.walk(TREES[path])}
    classes = [one for one in vars(own).values() if isinstance(one, type)]
    return any(has(owner, names) for owner in (own, module("hexkv.ports"), *classes))


def test_references_in_docstrings_resolve():
    lost = []
    for path in PRODUCT:
        for reference in set(ROLE.findall(path.read_text())):
            target = re.sub(r"\s", "", reference).rstrip("()")
            if not is_known(target, path):
                lost.append(f"{path.relative_to(ROOT)}: {target}")
    assert sorted(lost) == []


# ----------------------------------------------------------------------------------- walks

LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=2, heads=1, key_width=8)
WALKS = "first store", "second store", "retrieve from memory", "retrieve from disk"


def walk(call):
    """Files of the core that *call* enters in this thread, and its moves between them."""
    files, moves, last = set(), 0, None

    def on(frame, event, _):
        nonlocal moves, last
        name = frame.f_code.co_filename
        if event == "call" and "/hexkv/core/" in name:
            moves += last not in (None, name)
            last = name
            files.add(name)

    before = sys.gettrace()
    with no_collection():
        sys.settrace(on)
        try:
            call()
        finally:
            sys.settrace(before)
    return {"files": len(files), "moves": moves}


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    prompt = list(range(1024))
    tiers = [
        {"store": "memory", "budget": "16MiB"},
        {
            "store": "disk",
            "budget": "32MiB",
            "settings": {"root": str(tmp_path_factory.mktemp("walk"))},
        },
    ]
    settings = load(overrides={"pool": {"bytes": "64MiB"}, "tiers": tiers})
    computed = HeapKV(LAYOUT, len(prompt)).compute(prompt)
    with build(settings, Namespace("walks", LAYOUT)) as engine:

        def store():
            engine.store(prompt, computed)

        def retrieve():
            engine.retrieve(prompt, HeapKV(LAYOUT, len(prompt)))

        found = [walk(call) for call in (store, store, retrieve)]
        engine.clear(tiers=["memory"])
        found.append(walk(retrieve))
    return dict(zip(WALKS, found, strict=True))


@pytest.mark.parametrize("name", WALKS)
def test_no_call_walks_further_through_the_core_than_before(walks, name):
    limits = LIMITS["walks"][name]
    assert {k: v for k, v in walks[name].items() if v > limits[k]} == {}, "this call grew"
