"""The server's side: listeners, admission of clients, connections."""
