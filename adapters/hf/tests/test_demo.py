"""The demo shows what it claims, and says so when it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hexkv.adapters.hf.demo.command import main
from hexkv.adapters.hf.demo.outcome import Outcome
from hexkv.adapters.hf.demo.plan import DemoPlan, parse
from hexkv.adapters.hf.demo.subject import subject
from hexkv.contracts.kit.cases import each
from hexkv.ports import HexKVError, InvalidRequest

HEXKV = (sys.executable, "-m", "hexkv.plugins")

STAGE = """
import json, sys

def say(event, **values):
    print(json.dumps({"event": event, **values}), flush=True)

stage, plan = sys.argv[1], json.loads(sys.argv[2])
print("a library says something of its own")
say("step", text="working")
if stage == "first":
    say("acknowledged", seconds=8.0, store_seconds=0.1, stored_tokens=plan["tokens"], tokens=[1, 2])
    sys.stdin.read()
for run, seconds in (("without", 8.0), ("disk", 1.0), ("memory", 0.5)):
    say("measured", run=run, seconds=seconds, prompt_tokens=300, load_seconds=0.1,
        compute_seconds=0.1, hit_tokens=256, tier_tokens=256, loaded_bytes=1024, tokens=[1, 2])
"""


@pytest.fixture
def play(tmp_path: Path):
    """Runs the demo with stages that only pretend, changed by one replacement."""

    def run(*arguments: str, replace: tuple[str, str] = ("", "")) -> int:
        assert replace[0] in STAGE
        script = tmp_path / "stage.py"
        script.write_text(STAGE.replace(*replace) if replace[0] else STAGE)
        return main(
            ["--tokens", "256", "--dir", str(tmp_path / "demo"), *arguments],
            stages=(sys.executable, str(script)),
        )

    return run


@pytest.mark.thorough
def test_the_demo_hits_after_the_kill_with_a_real_model(tmp_path):
    done = subprocess.run(
        (*HEXKV, "demo", "--tokens", "512", "--json", "--dir", str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["problems"] == []
    assert said["tokens_equal"] is True
    assert said["first_process"]["killed"] is True
    assert said["first_process"]["stored_tokens"] == 512
    for tier in ("disk", "memory"):
        assert said["runs"][tier]["tier_tokens"] == 512
        assert said["runs"][tier]["tokens"] == said["first_process"]["tokens"]
        assert said["runs"][tier]["logits_differ_by"] < 1e-4
    assert "killed with SIGKILL" in done.stderr
    assert list(tmp_path.iterdir()) == [], "the demo left something behind"


def test_a_demo_that_shows_what_it_claims_prints_a_table(play, capsys):
    assert play() == 0
    output = capsys.readouterr().out
    assert "from disk, after the restart" in output
    assert "8.0 x" in output
    assert "16.0 x" in output


@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        (("loaded_bytes=1024, tokens=[1, 2]", "loaded_bytes=1024, tokens=[1, 3]"), "other tokens"),
        (("tier_tokens=256", "tier_tokens=0"), "0 tokens hit, not 256"),
        (('stored_tokens=plan["tokens"]', "stored_tokens=0"), "stored 0 tokens"),
    ],
)
def test_a_demo_that_does_not_show_it_fails_and_says_why(play, capsys, replace, reason):
    assert play("--json", replace=replace) == 1
    output = capsys.readouterr()
    assert reason in output.err
    assert any(reason in problem for problem in json.loads(output.out)["problems"])


def test_a_first_process_that_ended_otherwise_is_a_problem():
    run = {"seconds": 1.0, "tokens": [1], "tier_tokens": 256}
    outcome = Outcome(
        DemoPlan("", "text", "chunks", 256),
        {"stored_tokens": 256, "tokens": [1]},
        {"without": run, "disk": run},
        killed=False,
    )
    assert outcome.problems() == ["the first process was not ended by SIGKILL"]


def test_a_process_that_dies_early_ends_the_demo(play):
    with pytest.raises(HexKVError, match="1st process"):
        play(replace=('say("step", text="working")', "sys.exit(3)"))


def test_what_a_process_refuses_reaches_the_user(play):
    with pytest.raises(InvalidRequest, match="no such model"):
        play(replace=('say("step", text="working")', 'say("refused", text="no such model")'))


def test_the_directory_is_kept_on_demand(play, tmp_path, capsys):
    assert play("--keep") == 0
    (kept,) = (tmp_path / "demo").iterdir()
    assert (kept / "text").stat().st_size > 256
    assert f"kept: {kept}" in capsys.readouterr().err


@each(
    "arguments",
    [
        ["--tokens", "255"],
        ["--text", "/no/such/file"],
        ["--dir", "/dev/null/below"],
        ["--model", "/no/such/model"],
        ["--model", "./no-such-model"],
        ["--model", "~/no-such-model"],
    ],
)
def test_what_cannot_be_done_is_said_before_anything_starts(arguments):
    with pytest.raises(InvalidRequest):
        main(arguments, stages=("/no/such/program",))


def test_a_model_that_cannot_be_loaded_is_refused_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="cannot load --model") as refused:
        subject(DemoPlan(str(tmp_path), __file__, "", 256))
    assert len(str(refused.value).splitlines()) == 1


def test_a_text_shorter_than_the_prefix_is_refused(tmp_path):
    (tmp_path / "text").write_text("short")
    with pytest.raises(InvalidRequest, match="5 tokens, not 256"):
        subject(DemoPlan("", str(tmp_path / "text"), "", 256))


def test_a_users_own_model_reads_with_its_own_tokenizer_in_float32(tmp_path, llama):
    words = {f"w{i}": i for i in range(100)} | {"[UNK]": 100}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    directory = str(tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        directory
    )
    llama().to(torch.bfloat16).save_pretrained(directory)
    (tmp_path / "text").write_text(" ".join(f"w{i % 100}" for i in range(300)))
    model, prompt = subject(DemoPlan(directory, str(tmp_path / "text"), "", 256))
    assert model.dtype == torch.float32
    assert prompt[:256] == [i % 100 for i in range(256)]
    assert set(prompt[256:]) == {100}, "the ending follows, in unknown words"


def test_the_default_text_is_long_enough_for_a_tokenizer_of_words(play, tmp_path):
    play("--keep")
    (kept,) = (tmp_path / "demo").iterdir()
    assert len((kept / "text").read_text().split()) > 4200


@each("line", ["", "text", "[1]", "12", "{"])
def test_a_line_that_is_no_report_is_passed_over(line):
    assert parse(line) == {}


def test_discovery_of_the_demo_imports_neither_torch_nor_transformers():
    script = (
        "import sys; from hexkv.plugins.discovery.discovery import discover\n"
        "assert 'demo' in discover().commands\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
