"""SGLang's own classes on a CPU, with the rig in this process as in those that SGLang starts."""

import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

RIG = Path(__file__).parent / "rig"

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
if str(RIG) not in sys.path:
    sys.path.insert(0, str(RIG))

# pytest loads this also where the tests are not collected, because there is no SGLang.
if find_spec("sglang"):
    import rig_torchvision

    rig_torchvision.install()

    # What SGLang has to say while it is imported is not about this project.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import rig_plugin
        from engines.sglang import sglang_pools  # noqa: F401 - imports the rest of SGLang

        rig_plugin.activate()


@pytest.fixture(autouse=True)
def changed(monkeypatch):
    """A process that saw its model loaded, and in which no weights have changed yet."""
    from hexkv.adapters.sglang.identity.files import FILES
    from hexkv.adapters.sglang.identity.updates import CHANGED, Changes

    monkeypatch.setattr(FILES, "loaded", True)
    for name in ("seen", "flushed", "unsettled", "vouched"):
        monkeypatch.setattr(CHANGED, name, getattr(Changes(), name))
    return CHANGED


@pytest.fixture
def unloaded(changed, monkeypatch):
    """A process in which no server has looked at files."""
    from hexkv.adapters.sglang.identity.files import FILES

    monkeypatch.setattr(FILES, "loaded", False)


@pytest.fixture(autouse=True)
def written(request, monkeypatch):
    """Saves end with their writes, which run behind them otherwise; a busy machine drops none."""
    from hexkv.adapters.sglang.pages import page_store
    from hexkv.adapters.sglang.pages.page_store import PageStore
    from hexkv.plugins.clock import SystemClock
    from hexkv.ports import Deadline

    monkeypatch.setattr(page_store, "_SAVE_SECONDS", 60.0)
    if "stalled" in request.fixturenames:
        return
    save = PageStore.save

    def and_write(store, *given):
        kept = save(store, *given)
        store._chunks.flush(Deadline.after(SystemClock(), 60.0))
        return kept

    monkeypatch.setattr(PageStore, "save", and_write)


@pytest.fixture
def stalled(monkeypatch):
    """A disk that begins to write, and goes on when a test says so."""
    from threading import Event
    from types import SimpleNamespace

    from hexkv.adapters.local.disk import DiskStore

    disk = SimpleNamespace(begun=Event(), go=Event())
    write = DiskStore.write

    def later(*given):
        disk.begun.set()
        assert disk.go.wait(60.0)
        return write(*given)

    monkeypatch.setattr(DiskStore, "write", later)
    yield disk
    disk.go.set()
