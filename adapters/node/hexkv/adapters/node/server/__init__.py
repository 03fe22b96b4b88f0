"""The node's side: sessions, verbs, and the hand-over to the next process."""
