"""Redis and Valkey as a tier: one value per chunk, written from and read into its block."""
