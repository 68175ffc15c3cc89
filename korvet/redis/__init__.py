"""The connections to Redis: servers, clusters, commands in order, function library, server module."""
