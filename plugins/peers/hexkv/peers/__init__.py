"""A cache served to other processes: to peers, and to the clients of nodes and servers."""
