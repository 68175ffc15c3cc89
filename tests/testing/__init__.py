"""korvet for the tests of others: `korvet serve --ephemeral`, korvet.testing and its pytest plugin."""
