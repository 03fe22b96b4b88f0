"""S3 and compatible services as a tier: one object per chunk, from and into its block."""
