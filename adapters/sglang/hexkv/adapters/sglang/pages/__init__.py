"""SGLang's pools as pages of the cache by key."""
