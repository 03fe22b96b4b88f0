"""`hexkv fleet`: nodes that a directory names, looked into and acted on as one."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from configured import hit
from hexkv.adapters.admin.api import connect
from hexkv.fleet.api import open_fleet
from hexkv.fleet.nodes import find_nodes
from hexkv.plugins.__main__ import main
from hexkv.plugins.clock import SystemClock
from hexkv.ports import InvalidRequest, Selection, StoreUnreachable
from peers.fleets import fleet_of, room

ALL = Selection(everything=True)


@pytest.fixture
def members():
    with fleet_of("ada", "bob", "cyd") as members:
        yield members


@pytest.fixture
def fleet(members):
    with open_fleet(members.config) as fleet:
        yield fleet


def who_has(fleet, keys):
    held = fleet.holds(keys)
    return [sorted(name for name, tiers in held.items() if tiers[at]) for at in range(len(keys))]


def test_chunks_are_copied_moved_and_emptied_out_of_a_node_and_hit_where_they_went(members, fleet):
    tokens, keys = members.store("ada")
    assert {node.name: node.problem for node in fleet.nodes()} == {"ada": "", "bob": "", "cyd": ""}
    copied = fleet.copy(Selection(keys=tuple(keys)), "ada", "bob")
    assert (copied.complete, copied.done, copied.chunks) == (True, len(keys), len(keys))
    assert who_has(fleet, keys) == [["ada", "bob"]] * len(keys)
    moved = fleet.move(ALL, "ada", "cyd")
    assert (moved.complete, moved.done, moved.nodes) == (True, len(keys), {"cyd": len(keys)})
    assert who_has(fleet, keys) == [["bob", "cyd"]] * len(keys)
    assert fleet.move(Selection(keys=tuple(keys)), "ada", "cyd").chunks == 0  # nothing is left
    assert hit(members.engines["cyd"], tokens) == len(tokens)
    _, only = members.store("cyd", 2)
    drained = fleet.drain("cyd", hold=0.0)
    assert (drained.complete, drained.done) == (True, len({*keys, *only}))
    assert all({"cyd"} < set(names) for names in who_has(fleet, only))
    assert fleet.pin("me", Selection(keys=tuple(keys))).nodes == {
        "ada": 0,
        "bob": len(keys),
        "cyd": len(keys),
    }
    assert fleet.unpin("me").done == 2 * len(keys)
    assert fleet.clear(ALL).complete
    assert who_has(fleet, keys) == [[]] * len(keys)


def test_what_cannot_be_done_is_said_before_anything_changes(members, fleet):
    _, keys = members.store("ada")
    dan = members.serve("dan", peers={}, **room(2))
    with dan:
        members.known("ada", "bob", "cyd", "dan")
        for wrong, said in (
            (lambda f: f.move(ALL, "ada", "eve"), "no node is called 'eve'; there are: ada, bob"),
            (lambda f: f.move(ALL, "ada", "ada"), "is both"),
            (lambda f: f.move(ALL, "ada", "dan"), "section peers is off"),
            (lambda f: f.copy(ALL, "dan", "ada"), "section peers is off"),
            (lambda f: f.drain("ada", ["dan"]), "no other node takes chunks"),
            (lambda f: f.compress(ALL, "memory", "nozip"), "no serde 'nozip'"),
            (lambda f: f.compress(ALL, "disk", "raw"), "no tier"),
            (lambda f: f.clear(Selection(tenant="red")), "no node has chunks of 'red'"),
        ):
            with open_fleet(members.config) as again, pytest.raises(InvalidRequest, match=said):
                wrong(again)
    members.engines.pop("dan")
    members.engines["bob"].admin.freeze()
    with pytest.raises(InvalidRequest, match="frozen"):
        fleet.move(ALL, "ada", "bob")
    assert not members.engines["ada"].health().frozen
    assert who_has(fleet, keys) == [["ada"]] * len(keys)


def test_who_cannot_be_asked_is_named_and_left_out_only_if_that_is_wanted(members):
    _, keys = members.store("ada")
    gone = str(members.folder / "gone.sock")
    with open_fleet(members.config, nodes=[gone]) as fleet:
        for verb in (fleet.clear, lambda it: fleet.pin("me", it), lambda _: fleet.drain("ada")):
            with pytest.raises(StoreUnreachable, match=r"gone\.sock: "):
                verb(ALL)
        assert who_has(fleet, keys) == [["ada"]] * len(keys)
        assert fleet.pin("me", ALL, on=["ada"]).done == len(keys)
        assert [it.name for it in fleet.nodes() if it.problem] == [gone]
    with open_fleet(members.config, nodes=[gone], partial=True) as fleet:
        assert fleet.clear(ALL).done == len(keys)


def test_whoever_answers_at_an_address_has_to_be_the_node_that_is_meant(members):
    """One path is another node on each machine, and a directory may be wrong."""
    with open_fleet(members.config) as fleet:
        ada, bob, _ = [node.member for node in fleet.nodes()]
    for wrong in (replace(ada, generation=ada.generation + 1), replace(ada, admin=bob.admin)):
        names = SimpleNamespace(members=lambda deadline, wrong=wrong: [wrong])
        (node,) = find_nodes([], names, connect, SystemClock())
        assert (node.name, node.admin) == ("ada", None)
        assert "another node answers" in node.problem
    named = SimpleNamespace(members=lambda deadline: [ada, replace(bob, admin="")])
    found = find_nodes([ada.admin], named, connect, SystemClock())
    assert [node.name for node in found if node.admin] == ["ada"]
    assert found[1].problem == "it serves no administration"


def test_every_verb_has_an_answer_for_people_and_one_for_programs(members, capsys, tmp_path):
    tokens, keys = members.store("ada")
    config, prompt = tmp_path / "fleet.yaml", tmp_path / "prompt"
    config.write_text(json.dumps(members.config))
    prompt.write_text(json.dumps(tokens))
    chosen = ["--tokens", str(prompt)]
    nodes = [f"--node={members.folder / name}.sock" for name in ("ada", "bob")]

    def hexkv(*words):
        code = main(["fleet", *words])
        out, err = capsys.readouterr()
        assert err == "", words
        return code, out

    for words, said, field in (
        (["nodes"], "open", None),
        (["namespaces"], "toy", None),
        (["lookup", *chosen], f"ada: {len(tokens)}", None),
        (["lookup", "--key", keys[0].hex()], "ada", None),
        (["pin", "me", *chosen], f"{len(keys)} of {len(keys)} chunks pinned", "done"),
        (["unpin", "me"], "unpinned", "done"),
        (["copy", "ada", "bob", *chosen], f"{len(keys)} of {len(keys)} chunks done", "done"),
        (["move", "ada", "cyd", *chosen], "chunks done", "done"),
        (["drain", "cyd", "--hold", "0"], "chunks done", "kept"),
        (["clear", *chosen], "chunks done", "done"),
    ):
        code, out = hexkv("--config", str(config), *words)
        assert (code, said in out) == (0, True), (words, out)
        code, out = hexkv("--config", str(config), *words, "--json")
        assert code in (0, 1), words
        found = json.loads(out)
        assert field is None or field in found
    assert hexkv(*nodes, "nodes", "--json")[0] == 0
    assert hexkv("--config", str(config), "lookup", *chosen)[0] == 1
    code, out = hexkv("size", "--nodes", "64", "--chunks", "100000", "--events", "128", "--json")
    assert (code, json.loads(out)["memory"][1]) == (0, 48 * 6_400_000)
    for words in (["nodes"], ["--config", str(tmp_path / "none"), "nodes"], [*nodes, "clear"]):
        assert main(["fleet", *words]) in (1, 2)
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), words
