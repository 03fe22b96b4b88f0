"""Six tasks of people, each from wheels in an empty environment, with its minutes.

Four are the tutorials, one of which has two tasks: a node for two engines, and why a prompt missed.
Of vLLM this takes the environment of its tests, without hexkv: to fetch it takes longer than the
rest.
"""

import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from operating import tutorials
from operating.administration import short_folder
from operating.installing import PIP, ROOT, environment, made, run
from processes import held_port

pytestmark = pytest.mark.thorough

VLLM = ROOT / ".venv" / "vllm" / "bin" / "python"
BESIDE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "HEXKV_GIGABYTES": "1",
}
"""Variables for a vLLM on a machine that others use."""

COMMAND = """\
#!{}
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    main()
"""

LMCACHE = """\
chunk_size: 256
local_cpu: true
max_local_cpu_size: 0.1
local_disk: "file://FOLDER/"
max_local_disk_size: 1
"""


@pytest.fixture(scope="module")
def wheels(pytestconfig, tmp_path_factory):
    return made(pytestconfig, tmp_path_factory.mktemp("wheels"))


@contextmanager
def minutes(task, capsys):
    began = time.monotonic()
    yield
    with capsys.disabled():
        print(f"\n{task}: {(time.monotonic() - began) / 60:.1f} minutes")  # noqa: T201


def page(name):
    return (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()


def test_serve_a_hit_in_vllm(wheels, tmp_path, capsys):
    if not VLLM.exists():
        pytest.skip("make engines sets vLLM up")
    model = tmp_path / "model"
    script = ROOT / "adapters" / "vllm" / "e2e" / "tiny_llama.py"
    subprocess.run([VLLM, script, model], check=True, timeout=600)
    with minutes("a hit in vLLM, without its download", capsys):
        text = page("serve")
        home = tmp_path / "env"
        python = environment(home, wheels, *tutorials.wanted(text), python=VLLM)
        (python.parent / "vllm").write_text(COMMAND.format(python))
        (python.parent / "vllm").chmod(0o755)
        port = str(held_port())
        text = text.replace("vllm serve $MODEL", f"vllm serve $MODEL --port {port} --enforce-eager")
        said = tutorials.play(
            text.replace("localhost:8000", f"127.0.0.1:{port}"),
            tmp_path,
            python,
            MODEL=str(model),
            **BESIDE,
        )
        assert float(said[-1].split()[-1]) >= 256


def test_embed_a_cache_in_a_program(wheels, tmp_path, capsys):
    with minutes("a hit in a program", capsys):
        text = page("embed")
        python = environment(tmp_path / "env", wheels, *tutorials.wanted(text))
        tutorials.play(text, tmp_path, python)


def test_extend_by_an_adapter_that_keeps_its_contract(wheels, tmp_path, capsys):
    with minutes("an adapter", capsys):
        text = page("extend")
        python = environment(tmp_path / "env", wheels, *tutorials.wanted(text))
        # The environment has no pip of its own, and what builds packages comes from an index.
        pip, hatch = " ".join(map(str, PIP)), "--quiet --no-deps --no-build-isolation -w made"
        text = text.replace(
            "$ pip install ./acme-shelf\n",
            f"$ {pip} wheel {hatch} ./acme-shelf\n"
            f"$ {pip} --python {python} install --quiet --no-index --no-deps made/*\n",
        )
        tutorials.play(text, tmp_path, python)


def test_operate_a_node_for_two_engines_and_ask_it_why_a_prompt_missed(wheels, tmp_path, capsys):
    with minutes("a node for two engines, and why a prompt missed", capsys):
        text = page("operate")
        python = environment(tmp_path / "env", wheels, *tutorials.wanted(text))
        with short_folder() as folder:
            tutorials.play(text.replace("/var/tmp/node", f"{folder}/node"), tmp_path, python)


def test_a_configuration_of_lmcache_is_converted_and_starts(wheels, tmp_path, capsys):
    with minutes("a configuration of LMCache", capsys):
        python = environment(tmp_path / "env", wheels, "hexkv[lmcache,local]")
        hexkv = Path(python.parent) / "hexkv"
        (tmp_path / "lmcache.yaml").write_text(LMCACHE.replace("FOLDER", str(tmp_path / "kv")))
        made_of_it = run(hexkv, "config", "from-lmcache", "lmcache.yaml", cwd=tmp_path)
        (tmp_path / "hexkv.yaml").write_text(made_of_it)
        said = run(hexkv, "config", "check", "hexkv.yaml", "--open", cwd=tmp_path)
        assert said == "no problem\n"
