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


class Context:
    """What SGLang's context records of changes to its configuration."""

    def __init__(self):
        self.changes = [("startup", {"page_size": 4})]

    def overrides_log(self):
        return list(self.changes)


@pytest.fixture
def context(monkeypatch):
    """SGLang's context, in which a test records changes."""
    from sglang.srt import runtime_context

    made = Context()
    monkeypatch.setattr(runtime_context, "get_context", lambda: made)
    return made
