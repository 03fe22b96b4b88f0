"""``hexkv report``, and ``hexkv plan`` of a record: each number shown is one of the record."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.plan.recorded import COMPUTED, requests_of, served
from hexkv.plan.records import read_records
from hexkv.plan.reports import svg
from hexkv.plan.trace import read_mooncake
from hexkv.plugins.__main__ import main
from hexkv.ports import RecordedCall, RecordedKind, RecordedStep, TierHealth
from operating.call_records import CHUNK, a_call, keys_of, write_record

SPACE = "{http://www.w3.org/2000/svg}"


def tier(name, used, budget, chunks):
    return TierHealth(name, chunks, used, budget, 0, "closed", "closed", 0, False, {})


def a_day(path, **options):
    """Conversations that grow, of which the newest chunks come from memory."""
    calls, now = [], 0.0
    for turn in range(40):
        keys = keys_of(*(100 * (turn % 4) + i for i in range(2 + turn // 4)))
        old = len(keys) - 1 if turn >= 4 and turn % 4 else 0
        hits = {"memory": CHUNK, "disk <b>": CHUNK * (old - 1)} if old else {}
        missed = {"absent": CHUNK * (len(keys) - old)}
        steps = [
            RecordedStep("match", "", 0.05),
            *([RecordedStep("read", "disk <b>", 0.15)] if old else []),
            RecordedStep("end", "", 0.05),
        ]
        calls.append(
            a_call(RecordedKind.RETRIEVE, now, keys, tiers=hits, misses=missed, steps=steps)
        )
        calls.append(
            a_call(RecordedKind.STORE, now + 1.25, keys[old:], start=CHUNK * old, tiers=missed)
        )
        now += 10.0
    tiers = [tier("memory", 3 * 8192, 4 * 8192, 3), tier("disk <b>", 20 * 4096, 24 * 4096, 20)]
    return write_record(path, calls, tiers=tiers, lost=2, **options)


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def tables(page):
    """Rows of texts of every table of a page, by its first heading cell and its columns."""
    found = {}
    for one in page.iter("table"):
        head, *rows = [["".join(cell.itertext()) for cell in row] for row in one.iter("tr")]
        found[tuple(head)] = rows
    return found


def test_a_page_shows_the_numbers_of_the_report_and_needs_nothing_else(run, tmp_path):
    path = a_day(tmp_path / "day")
    code, out, err = run("report", path, "--json", "--html", tmp_path / "page.html")
    assert (code, err) == (0, "")
    report = json.loads(out)
    text = (tmp_path / "page.html").read_text()
    page = ET.fromstring(text.removeprefix("<!doctype html>"))
    shown = tables(page)
    hits = {row[0]: int(row[1].replace(",", "")) for row in shown[TIERS]}
    assert hits == {one["name"]: one["hit_tokens"] for one in report["tiers"]}
    assert sum(hits.values()) == report["hit_tokens"]
    assert shown["reason", "tokens"] == [["absent", f"{report['missed_tokens']['absent']:,}"]]
    (rates,) = (rows for head, rows in shown.items() if head[:2] == ("chunks", "size"))
    (head,) = (head for head in shown if head[:2] == ("chunks", "size"))
    sizes = report["sizes"]["sizes"]
    for row, size in zip(rates, sizes, strict=True):
        had = size["policies"] | {"knowing the future": {"hit_rate": size["optimal"]}}
        had["without limits"] = {"hit_rate": report["sizes"]["unlimited"]}
        assert row[0] == f"{size['blocks']:,}"
        assert row[2:] == [f"{had[name]['hit_rate']:.4f}" for name in head[2:]]
    drawings = page.findall(f".//figure/{SPACE}svg")
    assert len(drawings) == 4
    # What is drawn is what the table says: heights are the same share of the tallest line's.
    drawn = next(one for one in drawings if "policy" in one.find(f"{SPACE}title").text)
    lines = [
        [float(point.split(",")[1]) for point in one.get("points").split()]
        for one in drawn.iter(f"{SPACE}polyline")
    ]
    values = list(zip(*([float(cell) for cell in row[2:]] for row in rates), strict=True))
    floor, top = lines[0][0], lines[-1][0]
    assert floor != top
    scale = (top - floor) / (values[-1][0] - values[0][0])
    for line, numbers in zip(lines, values, strict=True):
        for height, value in zip(line, numbers, strict=True):
            off = abs(height - floor - scale * (value - values[0][0]))
            assert off < 3.1 * len(lines), "lines of equal values lie side by side"
    assert "2 calls came too fast" in text
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "").replace(
        "http-equiv", ""
    )


TIERS = ("tier", "hit", "stored", "used", "budget")


@pytest.mark.thorough
def test_times_and_changes_are_those_of_the_record(run, tmp_path):
    code, out, _ = run("report", a_day(tmp_path / "day"), "--json", "--policies", "lru")
    report = json.loads(out)
    assert code == 0
    assert (report["requests"], report["record"]["lost_calls"]) == (40, 2)
    groups = {one["group"]: one for one in report["time"]}
    part = {(p["part"], p["tier"]): p["seconds"] for p in groups["a part hit"]["parts"]}
    assert part.pop((COMPUTED, "")) == pytest.approx(1.0)
    assert part == {
        ("match", ""): pytest.approx(0.05),
        ("read", "disk <b>"): pytest.approx(0.15),
        ("end", ""): pytest.approx(0.05),
    }
    assert sum(group["requests"] for group in groups.values()) == 40
    assert report["compute_rate"]["source"] == "recorded"
    assert sum(span["tokens"] for span in report["spans"]) == report["tokens"]
    hit = sum(sum(span["hit_tokens"].values()) for span in report["spans"])
    assert hit == report["hit_tokens"]
    what = [row["what"] for row in report["changes"]]
    assert what == [
        "as it was recorded",
        "tier memory alone, as large as it is",
        "tier disk <b> alone, as large as it is",
        "tier disk <b> with 100 GiB more",
        "one more tier, ten times the largest",
        "without limits",
    ]
    rows = report["changes"]
    # By the bytes that a chunk takes there, as measured: half of a frame on the disk.
    assert [row["chunks"] for row in rows[1:3]] == [4, 24]
    assert rows[3]["chunks"] == 24 + (100 << 30) // 4096
    assert [row["hit_rate"] for row in rows[1:]] == sorted(row["hit_rate"] for row in rows[1:])
    configured = a_day(tmp_path / "rate", rate=100.0)
    known = json.loads(run("report", configured, "--json", "--policies", "lru")[1])
    assert known["compute_rate"] == {"tokens_per_second": 100.0, "source": "configured"}
    first = known["changes"][0]
    saved = first["hit_tokens_per_hour"] / 100.0
    assert first["saved_compute_seconds_per_hour"] == pytest.approx(saved)


@pytest.mark.thorough
def test_people_get_tables_and_a_plan_reads_records_too(run, tmp_path):
    path = a_day(tmp_path / "day")
    code, out, _ = run("report", path)
    assert code == 0
    assert "what a change would bring" in out
    code, out, _ = run("plan", path, "--sizes", "64KiB,1MiB", "--policies", "lru", "--json")
    planned = json.loads(out)
    assert code == 0
    assert (planned["block_tokens"], planned["block_bytes"]) == (CHUNK, 8192)
    assert [size["blocks"] for size in planned["sizes"]] == [8, 128]
    code, _, err = run("plan", path, "--block-tokens", "512")
    assert code == 1
    assert "in chunks of 16 tokens" in err
    damaged = tmp_path / "damaged"
    damaged.write_bytes(path.read_bytes().replace(b'"n":', b'"m":', 1))
    code, _, err = run("report", damaged)
    assert code == 1
    assert "damaged, line 2: " in err


@pytest.mark.thorough
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=20))
def test_a_record_replays_as_the_same_requests_in_a_trace_do(tmp_path_factory, prompts):
    """Of a host that loads and stores each prompt, and of one that looks, loads and stores it."""
    folder = tmp_path_factory.mktemp("same")
    known, trace, plain, looking = {}, [], [], []
    for number, prompt in enumerate(prompts):
        chain = list(accumulate(prompt, lambda before, one: f"{before} {one}", initial=""))[1:]
        ids = [known.setdefault(part, len(known)) for part in chain]
        keys, length = keys_of(*ids), CHUNK * len(ids)
        trace.append(
            {"timestamp": number, "input_length": length, "output_length": 1, "hash_ids": ids}
        )
        name = {"request": f"r{number}"}
        store = a_call(RecordedKind.STORE, number + 0.75, keys)
        plain += [a_call(RecordedKind.RETRIEVE, number, keys), store]
        looking += [
            a_call(RecordedKind.LOOKUP, number, keys, **name),
            a_call(RecordedKind.LOOKUP, number + 0.25, keys, **name),  # it waits, and asks again
            a_call(RecordedKind.RETRIEVE, number + 0.5, keys[:1], **name),
            store,
        ]
    expected = read_mooncake(map(json.dumps, trace), CHUNK)
    shapes = [shape_of(expected)]
    for name, calls in (("plain", plain), ("looking", looking)):
        record = read_records([write_record(folder / name, calls)])
        shapes.append(shape_of(requests_of(record.calls, CHUNK)))
    assert shapes[1:] == shapes[:1] * 2


def shape_of(requests):
    """Requests with numbers in place of keys, in the order in which these appear."""
    numbers = {}
    return [
        (r.tokens, r.before, r.asked, [numbers.setdefault(key, len(numbers)) for key in r.keys])
        for r in requests
    ]


@pytest.mark.thorough
def test_what_generated_tokens_left_is_kept_and_not_asked_for(tmp_path):
    keys = keys_of(*range(6))
    path = write_record(
        tmp_path / "turns",
        [
            a_call(RecordedKind.RETRIEVE, 0.0, keys[:2], extra=3),
            a_call(RecordedKind.STORE, 1.0, keys[:3]),
            a_call(RecordedKind.STORE, 2.0, keys[3:4], start=3 * CHUNK),
            a_call(RecordedKind.RETRIEVE, 3.0, keys[:5]),
            # A tail: not a full chunk, so no plan has it.
            RecordedCall(RecordedKind.RETRIEVE, 4.0, 0.1, 24, keys[4:6], 0, 24, {}),
            # A host that names pages itself asks for what is there, and stores what it missed.
            a_call(RecordedKind.STORE, 5.0, keys[5:], by_key=True),
        ],
    )
    found = requests_of(read_records([path]).calls, CHUNK)
    assert [(r.tokens, len(r.keys), r.before, r.asked) for r in found] == [
        (35, 2, 0, True),
        (0, 1, 2, False),
        (0, 1, 3, False),
        (80, 5, 0, True),
        (24, 1, 0, True),
        (16, 1, 0, True),
    ]
    assert len(served(read_records([path]).calls, CHUNK)) == 4


@pytest.mark.thorough
@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.lists(st.floats(0, 1e12), min_size=3, max_size=3)),
        min_size=1,
        max_size=9,
    ),
    st.booleans(),
)
def test_any_lines_make_a_drawing_that_stays_in_its_frame(lines, logarithmic):
    allowed = [(name, row) for name, row in lines if name.isprintable()]
    series = [svg.ChartLine(name, row) for name, row in allowed] or [svg.ChartLine("", [0.0] * 3)]
    places = [1.0, 10.0, 1000.0]
    drawn = svg.lines(series, places, title="<x>", below="&", beside='"', logarithmic=logarithmic)
    root = ET.fromstring(drawn)
    _, _, width, height = map(float, root.get("viewBox").split())
    found = root.findall(f"{SPACE}polyline")
    assert len(found) == len(series)
    looks = {(one.get("class"), one.get("stroke-dasharray")) for one in found}
    assert len(looks) == len(series)
    for one in found:
        for point in one.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    ET.fromstring(svg.standalone(drawn, [(one.name, one.limit) for one in series]))


@pytest.mark.thorough
@given(st.floats(1e-9, 1e15))
def test_ticks_are_few_and_reach_the_top(most):
    found = svg.ticks(most)
    assert 3 <= len(found) <= 7
    assert found[0] == 0
    assert found[-1] >= most * (1 - 1e-8)
