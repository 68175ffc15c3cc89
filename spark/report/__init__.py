"""The report on consumer groups as one HTML page."""
