"""Python imports this at its start, in every process that SGLang makes."""

import rig_torchvision

rig_torchvision.install()
