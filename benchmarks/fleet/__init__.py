"""Nodes, peers, directories and ranks beside the bare links between them."""
