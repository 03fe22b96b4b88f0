"""``make gpu`` runs, says that there is no GPU, and needs nothing of ours to be installed."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

pytest.importorskip("triton", reason="Triton exists for Linux only")


def gpu(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2400,
    )


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_and_every_part_that_is_asked_for_runs(tmp_path):
    written = tmp_path / "gpu.json"
    done = gpu("--part", "copies", "--site", tmp_path / "site", "--output", written)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there is no CUDA device on this machine" in done.stdout
    found = json.loads(written.read_text())
    assert not found["measured"]
    assert [(part["name"], part["state"]) for part in found["parts"]] == [("copies", "passed")]
    names = [result["name"] for result in found["parts"][0]["results"]]
    assert [name.split(",")[0] for name in names] == ["paged gather", "paged scatter"] * 2


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_every_part_that_measures_runs_interpreted(tmp_path):
    written = tmp_path / "gpu.json"
    parts = (
        "device",
        "layers",
        "pieces",
        "coding",
        "loading",
        "engines",
        "cache",
        "tiers",
        "hf",
        "ttft",
    )
    many = ("--total", 1800)  # a busy machine, interpreted kernels
    done = gpu("--part", *parts, *many, "--site", tmp_path / "site", "--output", written)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {part["name"]: part["results"] for part in json.loads(written.read_text())["parts"]}
    assert set(found) == set(parts)
    assert all(found.values())
    coded = " ".join(result["name"] for result in found["coding"])
    for form in ("int8", "int4", "fp8"):
        assert f"{form} dequantise" in coded
    same = [result["value"] for result in found["ttft"] if "value" in result]
    assert same
    assert all(same)


def test_a_part_that_takes_too_long_or_fails_is_told_and_the_others_go_on(tmp_path):
    program = f"""
import sys
from dataclasses import replace
import benchmarks.gpu.__main__ as run
from benchmarks.gpu.parts import PARTS
slow = replace(PARTS[0], name="slow", seconds=1, script=("-c", "import time; time.sleep(1000)"))
wrong = replace(PARTS[0], name="wrong", seconds=300, script=("-c", "raise SystemExit('no kernel')"))
whole = replace(PARTS[0], name="whole", seconds=300, script=("-c", "print('kernel')"))
run.chosen = lambda names, gpu: [wrong, whole, slow]
run._probe = lambda around: (True, "a torch that sees a GPU")
sys.argv = ["gpu", "--output", {str(tmp_path / "o")!r}, "--site", {str(tmp_path)!r}]
sys.exit(run.main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1, done.stderr
    parts = json.loads((tmp_path / "o").read_text())["parts"]
    states = {part["name"]: part["state"] for part in parts}
    assert states == {"wrong": "failed", "whole": "passed", "slow": "cut short"}
    assert "no kernel" in parts[0]["why"]


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.gpu import bare

    return bare


def test_wheels_for_this_python_are_unpacked_and_others_are_left(bare, tmp_path):
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for tags in ("py3-none-any", f"{here}-{here}-manylinux_2_17_{os.uname().machine}"):
        assert bare.fits(*tags.split("-")), tags
    assert bare.fits("cp38", "abi3", f"manylinux2014_{os.uname().machine}")
    for tags in ("cp27-cp27m-any", f"{here}-{here}-manylinux_2_17_z80", "py2-none-any"):
        assert not bare.fits(*tags.split("-")), tags
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    for name in ("hexkv_never-1-py3-none-any", "hexkv_other-1-cp27-cp27m-any"):
        with zipfile.ZipFile(wheels / f"{name}.whl", "w") as packed:
            packed.writestr(f"{name.split('-')[0]}.py", "")
    bare.environment(site, wheels)
    assert (site / "hexkv_never.py").exists()
    assert not (site / "hexkv_other.py").exists()
    assert bare.missing(("hexkv_never", "hexkv_other", "json"), site) == ["hexkv_other"]


def test_a_wheel_that_leaves_the_folder_is_refused(bare, tmp_path):
    wheel = tmp_path / "evil-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("../evil.py", "")
    with pytest.raises(bare.NotAWheel, match="leaves the folder"):
        bare.unpack(wheel, tmp_path / "site")


def test_what_is_announced_is_what_the_distributions_say(bare, tmp_path):
    bare.announce(tmp_path)
    program = (
        "from importlib.metadata import entry_points, version;"
        "print(version('hexkv-cuda'), entry_points(group='hexkv')['cuda'].value)"
    )
    # -S: without the packages of this environment.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    version, value = done.stdout.split()
    assert (version.count("."), value) == (2, "hexkv.adapters.cuda.plugin"), done.stderr
