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
        import sglang_pools  # noqa: F401 - imports the rest of SGLang

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
