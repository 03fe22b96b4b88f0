"""The chunk half over leases: caches by tokens and by key whose chunks another process keeps."""
