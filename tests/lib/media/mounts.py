"""File systems of a test's own: in a mount namespace that nobody else sees."""

import subprocess

import pytest

NAMESPACE = ("unshare", "-rm")
"""Before a command: it may mount what it likes, and what it leaves is gone with it."""


def _may_mount():
    try:
        tried = subprocess.run(
            [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
        )
    except FileNotFoundError:
        return False
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace of its own")
