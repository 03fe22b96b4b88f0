"""What the documents show is what happens."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

HERE = Path(__file__).parents[1]


def test_the_readmes_program_runs(gqa, prompt, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HEXKV_POOL__BYTES", "64MiB")
    monkeypatch.setenv("HEXKV_DEADLINES__LOOKUP", "60")
    (program,) = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
    names = {"model": gqa, "directory": str(tmp_path), "input_ids": prompt(300)}
    for hits in (0, 256):
        exec(program, dict(names))
        assert capsys.readouterr().out == f"{hits} of 300 tokens were not computed\n"


def test_the_example_reads_the_document_once(capsys, monkeypatch):
    monkeypatch.setenv("HEXKV_DEADLINES__LOOKUP", "60")
    runpy.run_path(str(HERE.parents[1] / "examples" / "three_questions.py"))
    hits = [int(line.split("?")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert hits == [0, 2048, 2048]
