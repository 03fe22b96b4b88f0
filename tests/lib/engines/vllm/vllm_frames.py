"""What can become of the files of a disk tier."""

import random
from array import array

from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import PAGE, CorruptFrame

CODEC = frame_codec(discover(), "xxh3-128")


def frames(root):
    """Those in a disk tier's directory."""
    return set(root.glob("??/*.hexkv"))


def sound(file):
    """Whether the file is a frame, every byte as it was sealed."""
    try:
        CODEC.open(memoryview(file.read_bytes()))
    except (CorruptFrame, FileNotFoundError):
        return False
    return True


def poison(file):
    """Other KV of the same size, sealed like the right one."""
    frame = memoryview(bytearray(file.read_bytes()))
    header = CODEC.open(frame)
    dice = random.Random(header.key)
    other = array("f", (dice.gauss(0, 2) for _ in range(header.payload_bytes // 4)))
    frame[PAGE : PAGE + header.payload_bytes] = memoryview(other).cast("B")
    CODEC.seal(frame, header)
    file.write_bytes(frame)


def damage(file):
    """One bit, somewhere in the KV."""
    frame = bytearray(file.read_bytes())
    frame[len(frame) // 2] ^= 1
    file.write_bytes(frame)


def cut(file):
    """Its end is missing."""
    file.write_bytes(file.read_bytes()[: 3 * PAGE])
