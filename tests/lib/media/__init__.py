"""What stores keep chunks in: dictionaries, files and mounts that fail, serdes."""
