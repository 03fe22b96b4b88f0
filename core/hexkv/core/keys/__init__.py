"""Pack, cut and hash tokens into the keys of chunks."""
