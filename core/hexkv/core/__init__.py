"""The domain: how chunks are cut, named, framed, kept in tiers and given back.

Pure Python over the standard library and :mod:`hexkv.ports`. No I/O, no clock, no
third-party import; ``tests/project/test_hexagon.py`` holds this line.
"""
