"""Words of commands in a shell, light help, and errors that name what they are about."""

import json
import shutil
import subprocess
import sys

import pytest

from hexkv.plugins.__main__ import main
from hexkv.plugins.cli.completion import following

HEAVY = {"numpy", "pydantic", "rich", "torch", "xxhash", "yaml"}


FOLLOWING = [
    ([], {"adapters", "top", "completion", "--version"}),
    (["config"], {"show", "--help"}),
    (["config", "show"], {"--config", "--origin", "--json"}),
    (["admin", "/nowhere", "clear"], {"--tenant", "--everything"}),
    (["nonsense"], set()),
]


def test_what_may_follow_is_what_help_says(capsys):
    for words, some in FOLLOWING:
        found = following(words, main)
        assert some <= set(found), words
        assert bool(found) == bool(some), words
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options(tmp_path):
    command = tmp_path / "hexkv"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hexkv.plugins "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(hexkv completion bash)"
        COMP_WORDS=(hexkv exp); COMP_CWORD=1; _hexkv; echo "${COMPREPLY[@]}"
        COMP_WORDS=(hexkv config show --o); COMP_CWORD=3; _hexkv; echo "${COMPREPLY[@]}"
    """
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = ["bash", "-euc", script]
    said = subprocess.run(words, env=path, capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:2] == ["explain export", "--origin"]


def test_help_imports_nothing_that_only_commands_need():
    script = f"""
import sys
from hexkv.plugins.__main__ import main
assert main(["--help"]) == 0
print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stderr.strip() == "[]"


FLAGS = [
    ("config show --config nope.yaml", "--config"),
    ("export x --config nope.yaml", "--config"),
    ("explain nope.json --dir .", "PROMPT"),
    ("explain p.json --dir nope", "--dir"),
    ("inspect nope", "DIRECTORY"),
    ("serdes --links 3Q", "--links"),
    ("fsck nope", "DIRECTORY"),
    ("completion csh", "SHELL"),
]


def test_an_error_names_the_flag(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps([1, 2]))
    for words, flag in FLAGS:
        assert main(words.split()) in (1, 2)
        assert flag in capsys.readouterr().err.splitlines()[-1], words
