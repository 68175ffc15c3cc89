"""How a Fetch is answered: partitions, waiting, sessions, memory and the response."""
