"""Engines as a configuration builds them, over real stores, given what means nothing or a bad day.

What tokens, windows and layouts do to an engine is in ``calls/test_engine_input.py``, what
damaged frames and lying stores do in ``test_engine_faults.py``; here is what those leave
out: the calls beside store and retrieve, a serving engine's pages, disks that are full or
read-only for real, strangers and other engines in the directory, and kills.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from configured import CHUNK, FRAME, LAYOUT, PROMPT, built, computed, hit, prompt, settle
from depth import thorough
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.kernels import PagedKV
from hexkv.ports import (
    ConfigError,
    CounterName,
    DType,
    InvalidRequest,
    InvalidTokens,
    KVLayout,
    LayoutMismatch,
)
from media.mounts import NAMESPACE, needs_mounts


@pytest.fixture
def engine(tmp_path):
    with built(tmp_path / "kv") as engine:
        yield engine
        settle(engine)
        assert set(engine.health().leases) <= {"memory store"}
        assert engine.health().pins == {}


NO_DATA = torch.zeros(3, dtype=torch.int64, device="meta")
SPARSE = torch.zeros(3, dtype=torch.int64).to_sparse()

# --- what means nothing -----------------------------------------------------------------


@each("tokens", [[-1], [2**32], [None], ["7"], "text", 5, [[1]], [1.0], NO_DATA, SPARSE])
@each(
    "call",
    [
        lambda e, tokens: e.prefetch("id", tokens),
        lambda e, tokens: e.pin(tokens, "owner"),
        lambda e, tokens: e.clear(tokens),
        lambda e, tokens: e.explain(tokens),
        lambda e, tokens: e.chunk_keys(tokens),
        lambda e, tokens: e.retrieve_layers(tokens, computed()).__enter__(),
        lambda e, tokens: e.store_layers(tokens, computed()).__enter__(),
    ],
    ids=["prefetch", "pin", "clear", "explain", "keys", "retrieve", "store"],
)
def test_wrong_tokens_are_refused_by_every_call(engine, call, tokens):
    engine.store(PROMPT, computed())
    with pytest.raises(InvalidTokens):
        call(engine, tokens)
    assert hit(engine) == len(PROMPT)


@each("tokens", [[], [7], PROMPT[: CHUNK - 1]], ids=len)
def test_prompts_shorter_than_a_chunk_pass_through_every_call(engine, tokens):
    engine.store(tokens, computed(tokens))
    assert engine.prefetch("id", tokens) == 0
    assert engine.pin(tokens, "owner") == engine.unpin("owner") == 0
    assert engine.clear(tokens).chunks == 0
    assert engine.explain(tokens).hit_tokens == 0
    with engine.retrieve_layers(tokens, HeapKV(LAYOUT, len(tokens))) as layers:
        assert list(layers) == list(range(LAYOUT.layers))


@each("namespace", [{}, "", "toy", 0, object()], ids=repr)
def test_nothing_else_is_taken_for_a_namespace(engine, namespace):
    engine.store(PROMPT, computed())
    with pytest.raises(InvalidRequest, match="is no namespace"):
        engine.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT)), namespace=namespace)


@each("skip", [None, "3", 1.5, float("nan"), [1]], ids=repr)
def test_only_a_whole_number_of_tokens_can_be_skipped(engine, skip):
    with pytest.raises(InvalidRequest, match="skip must be"):
        engine.store(PROMPT, computed(), skip=skip)


def test_rules_that_there_are_not_change_nothing(engine):
    with pytest.raises(InvalidRequest, match="there are all, evicted, none"):
        engine.admin.rules("disk", writes="sometimes")
    engine.admin.rules("disk", writes="none")
    assert engine.store(PROMPT, computed()).tiers == {"memory": len(PROMPT)}


# --- a serving engine's pages ------------------------------------------------------------


def pages(blocks=20, layout=LAYOUT, dtype=torch.float16):
    shapes = [[(blocks, 8, plane.heads, plane.width) for plane in p] for p in layout.planes]
    return [[torch.randn(shape).to(dtype) for shape in planes] for planes in shapes]


def test_a_slot_mapping_of_the_wrong_length_moves_nothing(engine):
    device = pages()
    before = [[page.clone() for page in planes] for planes in device]
    for count in (len(PROMPT) - 1, len(PROMPT) + 1, 0):
        window = PagedKV(LAYOUT, device, range(count))
        for call in (engine.store, engine.retrieve):
            with pytest.raises(InvalidRequest, match=f"addresses {count} positions"):
                call(PROMPT, window)
    assert engine.lookup(PROMPT).hit_tokens == 0
    for planes, former in zip(device, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(planes, former, strict=True))


def test_a_token_without_a_slot_cannot_be_stored_and_leaves_nothing_half_done(engine):
    slots = list(range(len(PROMPT)))
    slots[3 * CHUNK + 1] = -1
    with pytest.raises(InvalidRequest, match="no slot"):
        engine.store(PROMPT, PagedKV(LAYOUT, pages(), slots))
    assert engine.lookup(PROMPT).hit_tokens in (0, 3 * CHUNK)
    assert engine.store(PROMPT, computed()).dropped_tokens == 0


def test_pages_of_another_layout_are_refused_by_the_engine_and_by_the_window(engine):
    wide = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=64)
    other = PagedKV(wide, pages(layout=wide), range(len(PROMPT)))
    with pytest.raises(LayoutMismatch):
        engine.store(PROMPT, other)
    with pytest.raises(LayoutMismatch):
        PagedKV(LAYOUT, pages(dtype=torch.bfloat16), range(len(PROMPT)))


# --- memory that does not suffice --------------------------------------------------------


def test_a_pool_or_a_budget_smaller_than_one_chunk_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(ConfigError, match=rf"pool.bytes .* {FRAME - 1} bytes .* takes {FRAME}"):
        built(tmp_path, pool={"bytes": FRAME - 1})
    with pytest.raises(ConfigError, match=rf"tiers\[1\].budget .* takes {FRAME}"):
        built(tmp_path, budget=FRAME - 1)


@each("slots", [1, 2, 3])
def test_a_request_larger_than_the_pool_goes_to_disk_in_pieces_and_says_so(tmp_path_factory, slots):
    tmp_path = tmp_path_factory.mktemp("case")
    with built(tmp_path, slots=slots) as engine:
        report = engine.store(PROMPT, computed())
        assert report.tiers["disk"] == report.stored_tokens == len(PROMPT)
        assert report.tiers.get("memory", 0) < len(PROMPT)
        assert report.dropped_tokens == report.queued_tokens == 0
        assert hit(engine) == len(PROMPT)


def test_a_request_larger_than_every_tier_keeps_its_beginning_and_says_how_much(tmp_path):
    with built(tmp_path, slots=2, memory=False, budget=3 * FRAME) as engine:
        report = engine.store(PROMPT, computed())
        assert (report.stored_tokens, report.dropped_tokens) == (3 * CHUNK, 5 * CHUNK)
        assert report.drops == {"no room": 5 * CHUNK}
        # Of two neighbours that are written at once the later one may get the last room.
        assert hit(engine) in (2 * CHUNK, 3 * CHUNK)


# --- directories -------------------------------------------------------------------------


def test_foreign_files_are_left_alone_and_serve_nothing(tmp_path):
    with built(tmp_path, memory=False) as engine:
        engine.store(PROMPT, computed())
    frame = next(tmp_path.glob("??/*.hexkv"))
    strangers = {
        tmp_path / "notes.txt": b"mine",
        tmp_path / "ff" / "copy.hexkv": frame.read_bytes(),
        frame.with_suffix(".bak"): frame.read_bytes(),
        frame.with_name("ab" * 48 + ".hexkv.hexkv"): b"\0" * FRAME,
    }
    for path, data in strangers.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    with built(tmp_path, memory=False, budget=8 * FRAME) as engine:
        assert engine.flush()
        assert engine.health().tiers[0].chunks == 8
        assert hit(engine) == len(PROMPT)
        assert engine.clear().chunks == 8
    assert {path: path.read_bytes() for path in strangers} == strangers


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "kv").write_text("not a directory")
    with pytest.raises(ConfigError, match="kv"):
        built(tmp_path / "kv")


# --- bad days: each program runs in a process of its own ------------------------------------


LIMIT = 300.0
"""Seconds after which a program counts as hanging."""


def child(program, *arguments, unshare=()):
    lib = str(Path(__file__).parents[1] / "lib")
    program = f"import sys\nsys.path.insert(0, {lib!r})\nfrom configured import *\n{program}"
    return subprocess.Popen(
        [*unshare, sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


BAD_DISK = """
import json, random, subprocess
from hexkv.ports import CounterName

store, more = sys.argv[2], json.loads(sys.argv[3])

def run(*command):
    subprocess.run([*command, sys.argv[1]], check=True)

def stored(number):
    tokens = random.Random(number).choices(range(50_000), k=3 * CHUNK)
    on_disk = engine.store(tokens, computed(tokens)).tiers.get(store, 0)
    return on_disk // CHUNK, hit(engine, tokens) // CHUNK

def tier():
    return engine.health().tiers[1]

run("mount", "-t", "tmpfs", "-o", f"size={6 * FRAME}", "none")
with built(sys.argv[1], store=store, more=more) as engine:
    kept = engine.store(PROMPT, computed()).tiers[store] // CHUNK
    print("full:", 0 < kept < 8, tier().chunks == kept, hit(engine) // CHUNK)
    run("mount", "-o", f"remount,size={100 * FRAME}")
    print("larger:", *stored(1), tier().writing)

    # Over the mount that the engine has opened its own files on, which cannot be taken away.
    run("mount", "--bind", "-o", "ro", sys.argv[1])
    print("read-only:", *stored(2), *stored(3), tier().writing)
    print("dropped:", engine.telemetry.total(CounterName.DROPPED, tier=store) == 8 - kept + 6)
    engine.clear(tiers=["memory"])
    print("read:", hit(engine) // CHUNK == kept, tier().reading, tier().used_bytes // FRAME)

    run("umount")
    while not stored(4)[0]:
        engine.clear(tiers=["memory"])
    settle(engine)
    print("back:", tier().writing, sorted(engine.health().leases))
"""


@needs_mounts
@pytest.mark.parametrize(
    ("store", "needs"), [("disk", None), *thorough(("gds", None), ("nixl", "nixl_cu12"))]
)
def test_a_full_and_a_read_only_disk_cost_chunks_and_come_back_by_themselves(
    tmp_path, store, needs
):
    if needs is not None:
        pytest.importorskip(needs)
    more = "{}" if store != "gds" else '{"library": "no/such/library.so"}'
    program = child(BAD_DISK, tmp_path, store, more, unshare=NAMESPACE)
    out, err = program.communicate(timeout=LIMIT)
    assert out.splitlines() == [
        "full: True True 8",
        "larger: 3 3 closed",
        "read-only: 0 3 0 3 open",
        "dropped: True",
        "read: True closed 8",
        "back: closed ['memory store']",
    ], err


TRAFFIC = """
import random
order = random.Random(int(sys.argv[3]))
with built(sys.argv[1], slots=8, memory=False, budget=int(sys.argv[2])) as engine:
    found = 0
    for _ in range(100):
        tokens = prompt(order.randrange(8))
        found += hit(engine, tokens)
        engine.store(tokens, computed(tokens))
    settle(engine)
    print(found > 0, engine.health().leases)
"""


@pytest.mark.thorough
def test_two_processes_on_one_directory_serve_the_same_prompts_and_keep_one_budget(tmp_path):
    budget = 12 * FRAME
    both = [child(TRAFFIC, tmp_path, budget, seed) for seed in (1, 2)]
    for process in both:
        out, err = process.communicate(timeout=LIMIT)
        assert (process.returncode, out) == (0, "True {}\n"), err
    assert 0 < sum(file.stat().st_size for file in tmp_path.glob("??/*.hexkv")) <= budget
    with built(tmp_path, memory=False, budget=budget) as engine:
        assert sum(hit(engine, prompt(number)) for number in range(8)) > 0
        assert engine.telemetry.total(CounterName.CORRUPT) == 0


STORES_FOREVER = """
import itertools
with built(sys.argv[1]) as engine:
    for number in itertools.count(int(sys.argv[2])):
        tokens = prompt(number)
        report = engine.store(tokens, computed(tokens))
        print(number, report.tiers.get("disk", 0) + report.present_tokens, flush=True)
"""


@pytest.mark.thorough
def test_ten_kills_in_the_middle_of_stores_cost_no_acknowledged_chunk(tmp_path):
    acknowledged = {}
    for kill in range(10):
        process = child(STORES_FOREVER, tmp_path, 1000 * kill)
        said = [process.stdout.readline() for _ in range(1 + 3 * kill)]
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == -signal.SIGKILL
        lines = [
            line for line in "".join([*said, rest]).splitlines(keepends=True) if line[-1] == "\n"
        ]
        acknowledged.update(map(int, line.split()) for line in lines)

        with built(tmp_path) as engine:
            served = sum(min(hit(engine, prompt(n)), tokens) for n, tokens in acknowledged.items())
            assert served >= 0.99 * sum(acknowledged.values())
            assert engine.telemetry.total(CounterName.CORRUPT) == 0
    assert not list(tmp_path.rglob("*.tmp"))
