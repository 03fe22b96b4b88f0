"""SGLang's own classes on a CPU, with the rig in this process as in those that SGLang starts."""

import os
import sys
import warnings
from pathlib import Path

RIG = Path(__file__).parent / "rig"

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
if str(RIG) not in sys.path:
    sys.path.insert(0, str(RIG))

import rig_torchvision  # noqa: E402 - lies in the rig

rig_torchvision.install()

# What SGLang and its libraries have to say while they are imported is not about this project.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rig_plugin
    import sglang_pools  # noqa: F401 - imports the rest of SGLang

    rig_plugin.activate()
