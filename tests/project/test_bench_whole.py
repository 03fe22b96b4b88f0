"""What ``make bench`` joins: no goal is lost, and none that was missed is called reached."""

import json

from benchmarks import whole

RATIO = {"median": 0.5, "lower": 0.4, "upper": 0.6}
FOUND = {
    "results": [
        {"name": "a", "kind": "speed", "goal": 0.9, "reached": False, "ratio": RATIO, "ratios": []},
        {"name": "b", "kind": "cost", "goal": None, "reached": None, "ratio": RATIO},
    ],
    "rows": [{"serde": "c", "decode": 0.1, "goal": "missed"}, {"serde": "d", "goal": ""}],
    "lookup": {"what": "e", "median_ms": 2.0, "goal_ms": 5.0, "reached": True},
}


def test_pieces_are_joined_and_the_exit_code_says_what_fell_short(tmp_path, monkeypatch, capsys):
    page, output = tmp_path / "page.md", tmp_path / "whole.json"
    page.write_text("before\n" + whole.START + "old\n" + whole.END + "after\n")
    ended = {"keys": (3, FOUND), "lookup": (0, {"rows": []})}

    def ran(command, **_):
        code, found = ended[command[command.index("--only") + 1]]
        if found is not None:
            with open(command[-1], "w") as file:
                json.dump(found, file)
        return type("Ended", (), {"returncode": code})

    monkeypatch.setattr(whole, "SECTIONS", {name: whole.SECTIONS[name] for name in ended})
    monkeypatch.setattr(whole.subprocess, "run", ran)
    at = ["--output", str(output), "--page", str(page)]
    assert whole.main(["--only", "keys", *at]) == 1  # the other one never ran
    assert whole.main(["--missing", *at]) == whole.SHORT
    sections = json.loads(output.read_text())["sections"]
    assert [*sections] == ["keys", "lookup"]
    assert [(row.name, row.reached) for row in whole.rows(sections)] == [
        ("a", False),
        ("c", False),
        ("e", True),
    ]
    assert "ratios" not in sections["keys"]["result"]["results"][0]
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "short of its goal: keys: a: 0.50" in capsys.readouterr().out
    ended["keys"] = 1, None
    assert whole.main(["--only", "keys", *at]) == 1
