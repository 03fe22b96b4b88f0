"""Other processes: the directory, channels, announcements, hand-over, and ranks in lockstep."""
