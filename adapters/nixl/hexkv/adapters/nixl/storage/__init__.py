"""A store whose bytes NIXL moves, by its plug-ins for files and for object stores."""
