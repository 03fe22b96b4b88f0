"""S3 and what speaks like it as a tier: one object per chunk, from and into its block."""
