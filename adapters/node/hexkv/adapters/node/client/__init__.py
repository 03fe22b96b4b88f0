"""The client's side: the chunks of a node as a cache of this process."""
