"""Records of calls, in files."""
