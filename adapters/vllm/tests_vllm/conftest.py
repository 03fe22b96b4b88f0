"""A toy engine, made of vLLM's own parts."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from engines.vllm.vllm_engines import PATIENCE, PATIENT
from hexkv.adapters.vllm.worker import pending_saves

with warnings.catch_warnings():  # what vLLM imports is deprecated here and there
    warnings.simplefilter("ignore")
    from engines.vllm.vllm_toy import Toy

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "e2e" / "tiny_llama.py"


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model's folder. Only its configuration is read."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, timeout=PATIENCE)
    return folder


@pytest.fixture
def start(model, tmp_path, monkeypatch):
    """Starts toys; the test's end ends them."""
    toys = []
    monkeypatch.setattr(pending_saves, "LATE", PATIENCE)

    def begin(*, tiers=None, chunk=32, pool="4MiB", connector=None, node=None, toy=Toy, **settings):
        own = {"pool": {"bytes": pool}, "tiers": tiers or [{"store": "memory"}]}
        own["compute_rate"] = 1e-3  # a toy computes sooner than a busy disk brings anything
        extra = {
            "chunk": {"size": chunk},
            **({"node": str(node)} if node else own),
            "socket_dir": str(tmp_path),
            **PATIENT,
            **(connector or {}),
        }
        toys.append(toy(model, extra, **settings))
        return toys[-1]

    yield begin
    for toy in toys:
        toy.close()


def pytest_collection_modifyitems(items):
    """vLLM's warnings are vLLM's own affair."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))
