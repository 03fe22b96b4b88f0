"""``python -m peers.lying_directory``: the command ``hexkv``, whose directory lies on a signal.

From SIGUSR1 to SIGUSR2 it says that everybody has everything.
"""

import signal
import sys

import numpy as np

from hexkv.adapters.directory.cell import Cell, Located
from hexkv.plugins.__main__ import main


def lie_when_told():
    """Have directories of this process lie between the two signals."""
    locate, lying = Cell.locate, []

    def said(cell, tags):
        found = locate(cell, tags)
        if not lying:
            return found
        return Located(found.version, np.broadcast_to(cell._mask, found.rows.shape).copy())

    Cell.locate = said
    signal.signal(signal.SIGUSR1, lambda *_: lying.append(True))
    signal.signal(signal.SIGUSR2, lambda *_: lying.clear())


if __name__ == "__main__":
    lie_when_told()
    sys.exit(main())
