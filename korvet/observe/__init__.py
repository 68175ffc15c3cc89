"""Collectors: what the running parts have counted, as samples for a scrape. One module a concern."""
