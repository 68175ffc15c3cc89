"""The connections to Redis: servers, clusters, commands in order and their replies."""
