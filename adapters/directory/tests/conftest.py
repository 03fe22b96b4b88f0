from servers.directory_servers import client, clock, served

__all__ = ["client", "clock", "served"]
