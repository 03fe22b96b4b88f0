"""Real servers and doubles of servers, as processes or threads of a test."""
