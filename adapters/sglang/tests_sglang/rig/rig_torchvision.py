"""Lets torchvision's CUDA build be imported beside a CPU build of torch.

SGLang imports it for pictures, which no test has. The build's operators cannot be loaded, and
importing it fails where these two are not even declared; none of them is ever called.
"""

import sys

_DECLARED = []


class _BeforeTorchvision:
    def find_spec(self, name, path=None, target=None):
        del path, target
        if name == "torchvision" and not _DECLARED:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(
                    f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
            _DECLARED.append(library)


def install():
    """Once for each process."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())
