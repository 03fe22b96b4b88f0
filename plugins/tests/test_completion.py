"""Words of commands in a shell, light help, and errors that name what they are about."""

import json
import shutil
import subprocess
import sys

import pytest

from hexkv.plugins.__main__ import main

FOLLOWING = [
    ("", {"adapters", "top", "completion"}),
    ("--", {"--version", "--install-completion", "--show-completion"}),
    ("config ", {"show", "--help"}),
    ("config show --", {"--config", "--origin", "--json"}),
    ("admin /nowhere clear ", {"--tenant", "--everything"}),
]


def test_what_may_follow_is_what_help_says(monkeypatch, capsys):
    monkeypatch.setenv("_HEXKV_COMPLETE", "complete_bash")
    for line, some in FOLLOWING:
        words = ["hexkv", *line.split(" ")]
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        assert main([]) == 0
        found, errors = capsys.readouterr()
        assert some <= set(found.split()), line
        assert errors == "", line


BASH = """
    said() { _hexkv_completion hexkv; echo "${COMPREPLY[@]}"; }
    eval "$(hexkv completion bash)"
    COMP_WORDS=(hexkv exp); COMP_CWORD=1; said
    COMP_WORDS=(hexkv config show --o); COMP_CWORD=3; said
"""

# A terminal, and a person who presses the tabulator: reading waits for what is to appear.
ZSH = r"""
    zmodload zsh/zpty
    zpty shell zsh -f -i
    zpty -w shell 'PS1=; autoload -Uz compinit; compinit -u -D; eval "$(hexkv completion zsh)"'
    zpty -w shell 'echo "begin"s'
    zpty -r shell said '*begins*'
    zpty -w -n shell $'hexkv config show --o\t'
    zpty -r shell said '*--origin*'
    zpty -w shell $'\x15'
    zpty -w -n shell $'hexkv exp\t\t'
    zpty -r shell said '*export*'
    print explain export
    print -- --origin
    zpty -d shell
"""

FISH = r"""
    hexkv completion fish | source
    string join ' ' (complete -C 'hexkv exp' | string replace -r '\t.*' '')
    complete -C 'hexkv config show --o'
"""


def completed(shell, script, tmp_path):
    """What a real shell completes by the script that is printed for it."""
    command = tmp_path / "hexkv"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hexkv.plugins "$@"\n')
    command.chmod(0o755)
    told = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"}
    done = subprocess.run(
        [*shell, script], env=told, capture_output=True, text=True, check=True, timeout=300
    )
    return [line.strip() for line in done.stdout.splitlines()][:2]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options(tmp_path):
    assert completed(["bash", "-euc"], BASH, tmp_path) == ["explain export", "--origin"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shell", "script"),
    [(["zsh", "-fc"], ZSH), (["fish", "--no-config", "-c"], FISH)],
    ids=["zsh", "fish"],
)
def test_other_shells_complete_commands_and_options(shell, script, tmp_path):
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    assert completed(shell, script, tmp_path) == ["explain export", "--origin"]


FLAGS = [
    ("config show --config nope.yaml", "--config"),
    ("export x --config nope.yaml", "--config"),
    ("explain --tokens nope.json --dir .", "--tokens"),
    ("explain --tokens p.json --dir nope", "--dir"),
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
