"""Backup and restore of everything that a Redis or Valkey server holds, while brokers run."""
