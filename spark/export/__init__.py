"""Exports of topics and tables to files, Delta, Iceberg or a database."""
