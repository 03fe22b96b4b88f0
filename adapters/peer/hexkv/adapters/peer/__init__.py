"""A tier that reads chunks from the peers that hold them."""
