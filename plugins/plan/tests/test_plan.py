"""``hexkv plan``: for people and for programs, well and badly called."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.plan.cli.chart import bar
from hexkv.plan.cli.plan import parse_chunks
from hexkv.plan.reports import svg
from hexkv.plugins.__main__ import main

EXCERPT = Path(__file__).parents[3] / "tests" / "data" / "conversation.jsonl"


@pytest.fixture
def plan(capsys):
    """Runs ``hexkv plan`` in this process; gives exit code, output and errors."""

    def call(*words):
        code = main(["plan", *(str(word) for word in words)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def short(tmp_path):
    """A trace of which every number can be worked out by hand: one prompt, twice."""
    line = {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]}
    path = tmp_path / "short.jsonl"
    path.write_text(f"{json.dumps(line)}\n" * 2)
    return path


def test_programs_get_every_rate_beside_what_is_possible(plan, short):
    code, out, err = plan(short, "--sizes", "2,1", "--policies", "lru,arc", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    half = 512 / 2200
    assert (found["requests"], found["tokens"], found["block_tokens"]) == (2, 2200, 512)
    assert found["unlimited"] == 2 * half
    assert [size["blocks"] for size in found["sizes"]] == [1, 2]
    assert [size["optimal"] for size in found["sizes"]] == [half, 2 * half]
    for size, rate in zip(found["sizes"], [half, 2 * half], strict=True):
        assert {name: one["hit_rate"] for name, one in size["policies"].items()} == {
            "lru": rate,
            "arc": rate,
        }


def test_people_get_a_table_and_bars(plan):
    code, out, _ = plan(EXCERPT, "--sizes", "1k,3k", "--policies", "lru")
    assert code == 0
    assert "700 requests, 9,565,859 tokens" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("lru")]
    assert rows == [["lru", "0.0395", "0.0637"]]
    assert "knowing the future" in out
    assert "█" in out


def test_a_half_of_the_memory_may_be_compressed(plan):
    words = (EXCERPT, "--sizes", "1k,3k", "--policies", "lru", "--compressed", "4")
    code, out, _ = plan(*words, "--json")
    assert code == 0
    smaller, larger = [size["policies"] for size in json.loads(out)["sizes"]]
    row = "lru, half 4 x smaller"
    assert smaller["lru"]["hit_rate"] < smaller[row]["hit_rate"] < larger["lru"]["hit_rate"]
    code, out, _ = plan(*words, "--think", "0", "--write-rate", "3000", "--json")
    assert code == 0
    burst = json.loads(out)["sizes"][1]["policies"][f"{row}, 0 s apart"]
    assert burst["dropped"] > 0
    assert larger["lru"]["hit_rate"] < burst["hit_rate"] < larger[row]["hit_rate"]


@pytest.mark.thorough
def test_what_depends_on_names_is_a_range_over_namings(plan):
    words = (EXCERPT, "--sizes", "1k", "--policies", "lru", "--compressed", "4", "--json")
    code, out, _ = plan(*words, "--min-reuse", "0.3")
    assert code == 0
    row = "lru, half 4 x smaller, min_reuse 0.3"
    rows = json.loads(out)["sizes"][0]["policies"]
    assert 0 < rows[f"{row}, at least"]["hit_rate"] < rows[f"{row}, at most"]["hit_rate"]


def test_two_processes_find_what_one_finds(plan):
    words = (EXCERPT, "--sizes", "300,1k", "--policies", "lru,fifo", "--json")
    assert plan(*words, "--processes", 2) == plan(*words)


def test_the_plot_is_a_drawing_with_a_line_for_each_policy(plan, short, tmp_path):
    code, _, _ = plan(
        short, "--sizes", "1,2", "--policies", "lru,mru", "--plot", tmp_path / "a.svg"
    )
    assert code == 0
    root = ET.parse(tmp_path / "a.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == 4
    texts = [text.text for text in root.findall(f"{space}text")]
    names = {"A lru", "B mru", "C knowing the future", "D without limits"}
    assert names | {"A", "B", "C", "D", "1", "2"} <= set(texts)


@each(
    ("words", "code", "message"),
    [
        (["absent.jsonl"], 1, "error: absent.jsonl: No such file or directory\n"),
        ([EXCERPT, "--block-tokens", "256"], 1, "line 1: 14 hash_ids, where 6758 tokens make 27"),
        ([EXCERPT, "--policies", "lur"], 2, "did you mean 'lru'?"),
        ([EXCERPT, "--sizes", "many"], 2, "'many' is no size"),
        ([EXCERPT, "--sizes", "1GiB"], 2, "--block-bytes"),
        ([EXCERPT, "--think", "0"], 2, "needs --compressed"),
        ([EXCERPT, "--min-reuse", "0.1"], 2, "needs --compressed"),
        ([EXCERPT, "--sizes", "0"], 2, "no room for a single block"),
        ([EXCERPT, "--processes", "0"], 2, "--processes"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(plan, words, code, message):
    got, out, err = plan(*words)
    assert (got, out) == (code, "")
    assert message in err


def test_a_trace_without_requests_is_an_error(plan, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    code, _, err = plan(empty)
    assert code == 1
    assert err.endswith("empty.jsonl: no requests in it\n")


def test_a_plot_that_cannot_be_written_is_an_error(plan, short, tmp_path):
    code, _, err = plan(short, "--policies", "lru", "--plot", tmp_path / "no" / "where.svg")
    assert code == 2
    assert "No such file" in err


@each(
    ("text", "chunk_bytes", "chunks"),
    [("7", None, 7), ("3k", None, 3000), ("2M", None, 2_000_000), ("1GiB", 2**25, 32)],
)
def test_a_size_is_a_number_of_blocks_or_of_bytes(text, chunk_bytes, chunks):
    assert parse_chunks(text, chunk_bytes) == chunks


@each(("value", "expected"), [(0.0, ""), (1.0, "████"), (0.5, "██"), (0.03125, "▏")])
def test_a_bar_is_as_long_as_its_value(value, expected):
    assert bar(value, 1.0, 4) == expected
    assert bar(value, 0.0, 4) == ""


def test_a_name_cannot_break_the_drawing_and_equal_lines_lie_side_by_side():
    drawn = svg.standalone(
        svg.lines([svg.ChartLine("<a&b>", [0.0])], [10], title="<t>", below="x", beside="y"),
        [("<a&b>", False)],
    )
    assert "&lt;a&amp;b&gt;" in drawn
    ET.fromstring(drawn)
    values = [[0.5, 0.2, 0.9], [0.5, 0.2, 0.1], [0.5, 0.7, 0.9]]
    series = [svg.ChartLine(str(number), of) for number, of in enumerate(values)]
    found = svg.lines(series, [1, 2, 3], title="t", below="x", beside="y")
    spots = [re.findall(r",([\d.]+)", points) for points in re.findall(r'points="(.*?)"', found)]
    for column in zip(*spots, strict=True):
        heights = sorted(map(float, column))
        assert min(b - a for a, b in pairwise(heights)) >= 2.9
        assert max(b - a for a, b in pairwise(heights)) < 3.1 or len(set(column)) == 3
