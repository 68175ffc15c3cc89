"""Backup and restore of everything that a Redis or Valkey server or cluster holds, while brokers run."""
