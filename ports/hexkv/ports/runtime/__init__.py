"""What a process gives its cache: time, threads, memory, hash functions, cuts of prompts."""
