"""Files and directories of chunks: paths, I/O, locks, accounts and quarantine."""
