"""InfiniStore as a tier."""
