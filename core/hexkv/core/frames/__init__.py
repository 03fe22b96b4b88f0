"""The format of a chunk outside memory, and the detection of damage."""
