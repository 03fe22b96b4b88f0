"""``hexkv demo``: a first hit, shown with a real model and two processes.

``command`` is the parent: it starts ``stages`` twice, kills the first one, and judges
their reports. Parent and stages talk in JSON lines, so only the stages import torch.
"""
