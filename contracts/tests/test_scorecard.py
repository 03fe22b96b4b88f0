"""A scorecard says what became of each promise, in every form alike."""

import json
import xml.etree.ElementTree as ET

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import CONTRACT, Level, Promise, promise
from hexkv.contracts.scorecard import (
    SCHEMA,
    Card,
    Kit,
    Scorecard,
    ScoreLine,
    Subject,
    Verdict,
    badge,
)
from hexkv.contracts.scorecard import show as show_scorecard

pytest_plugins = ["pytester"]

KIT = Kit("1.2", 3, "3.11.0", "Linux x86_64")
SUITE = """
    import pytest
    from hexkv.contracts.kit.promise import not_offered, promise
    from hexkv.contracts.kit.whole import Whole, waive

    class Contract(Whole):
        @promise("L0.1", "is there", why="it must be", hint="be there", clause="Port.be")
        def test_is_there(self): pass

        @promise("L1.1", "counts", why="numbers matter")
        @pytest.mark.parametrize("n", [1, 2])
        def test_counts(self, n, record_property):
            record_property("ratio", n / 4)
            assert n == self.most, "it cannot count"

        @promise("L1.2", "is blue")
        def test_is_blue(self): not_offered("blue")

        @promise("L2.1", "shows all")
        def test_shows_all(self): not_offered("raw")

        @promise("L3.1", "is quick")
        def test_is_quick(self): raise RuntimeError("too slow")

        @promise("L4.1", "gets up")
        def test_gets_up(self, broken): pass

        @pytest.fixture
        def broken(self): raise OSError("no bed")

    class TestOne(Contract):
        most = 2
        test_is_quick = waive("it is a snail")

    def test_that_is_no_promise(): pass
"""


def line(number, verdict, **rest):
    return ScoreLine(Promise(number, f"does {number}", Level(number[:2])), verdict, **rest)


def card(**verdicts):
    return Card(Subject("thing"), [line(n.replace("_", "."), v) for n, v in verdicts.items()])


@pytest.fixture
def written(pytester):
    """The scorecard that a run of pytest leaves behind."""
    pytester.makepyfile(SUITE)
    options = ["-p", "no:cacheprovider", "--hexkv-scorecard", "card.json"]
    pytester.runpytest_subprocess(*options)
    return json.loads((pytester.path / "card.json").read_text())


def test_a_run_of_pytest_leaves_a_scorecard_of_each_class(written):
    assert written["schema"] == SCHEMA
    assert written["kit"]["contract"] == CONTRACT
    (found,) = written["cards"]
    assert found["subject"]["name"].endswith("::TestOne")
    verdicts = {p["number"]: (p["verdict"], p["reason"]) for p in found["promises"]}
    assert verdicts == {
        "L0.1": ("kept", ""),
        "L1.1": ("broken", "it cannot count"),
        "L1.2": ("not offered", "blue"),
        "L2.1": ("not checked", "raw"),
        "L3.1": ("waived", "it is a snail"),
        "L4.1": ("broken", "OSError: no bed"),
    }
    assert list(verdicts) == sorted(verdicts)
    assert found["held"] == ["L0"]
    assert found["levels"]["L1"] == dict.fromkeys(Verdict, 0) | {"broken": 1, "not offered": 1}
    first, second, *_ = found["promises"]
    assert first["clause"] == "Port.be"
    assert (first["why"], first["hint"]) == ("it must be", "be there")
    assert second["measured"] == {"ratio": 0.5}


def test_the_json_says_everything_and_can_be_read_back():
    full = Scorecard([card(L0_1=Verdict.KEPT, L1_1=Verdict.WAIVED)], KIT).as_json()
    assert json.loads(json.dumps(full)) == full
    assert set(full) == {"schema", "kit", "cards"}
    assert set(full["kit"]) == {"version", "contract", "python", "platform"}
    (one,) = full["cards"]
    assert set(one) == {"subject", "held", "levels", "promises"}
    assert set(one["subject"]) == {"name", "distribution", "contract", "engine"}
    assert set(one["promises"][0]) == {
        *("number", "text", "level", "clause", "why", "hint", "verdict", "reason", "measured")
    }


@each(
    ("verdicts", "words"),
    [
        ({"L0_1": Verdict.KEPT, "L1_1": Verdict.KEPT, "L3_1": Verdict.KEPT}, "L0-L1 L3"),
        ({"L0_1": Verdict.KEPT, "L1_1": Verdict.NOT_CHECKED}, "L0"),
        ({"L0_1": Verdict.KEPT, "L1_1": Verdict.BROKEN}, "1 broken"),
        ({"L0_1": Verdict.KEPT, "L0_2": Verdict.WAIVED}, "L0, 1 waived"),
        ({"L0_1": Verdict.NOT_OFFERED}, "nothing checked"),
    ],
)
def test_a_badge_claims_the_levels_that_are_held_and_no_more(verdicts, words):
    drawn = ET.fromstring(badge(card(**verdicts), KIT))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["hexkv contract 3", words]
    assert drawn.get("aria-label") == f"thing: {words}"


def test_a_badge_is_sound_whatever_the_subject_is_called():
    named = Card(Subject('<"&>'), [line("L0.1", Verdict.KEPT)])
    assert ET.fromstring(badge(named, KIT)).get("aria-label") == '<"&>: L0'


def test_the_terminal_shows_why_a_promise_is_broken_or_waived(capsys):
    lines = [
        ScoreLine(
            Promise("L1.4", "lets go", Level.L1, why="memory is used again", hint="copy"),
            Verdict.BROKEN,
            "it holds on",
        ),
        line("L2.1", Verdict.WAIVED, reason="a tape"),
        line("L2.2", Verdict.NOT_CHECKED, reason="raw"),
        line("L2.3", Verdict.NOT_CHECKED, reason="raw"),
        line("L6.1", Verdict.KEPT, measured={"ratio": 0.93}),
    ]
    show_scorecard(Scorecard([Card(Subject("thing", "shelf 1.0", 1, "Tape 9"), lines)], KIT))
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "subject: thing adapter: shelf 1.0 written for: contract 1 engine: Tape 9" in words
    assert "broken L1.4: lets go seen: it holds on why it matters: memory is used again" in words
    assert "L2.1 does L2.1 a tape" in words
    assert "raw L2.2 L2.3" in words
    assert "L6.1 ratio 0.93" in words
    assert "hexkv-contracts 1.2, contract 3, Python 3.11.0" in words


def test_a_promise_has_the_level_that_its_number_says():
    assert Promise.of([promise("L4.7", "x").mark]).level is Level.L4
    assert Promise.of([promise("scan.1", "x").mark]).level is Level.L1
    assert Promise.of([promise("scan.1", "x", level="L6").mark]).level is Level.L6
    with pytest.raises(ValueError, match="of which level"):
        promise("song.1", "is sung")
