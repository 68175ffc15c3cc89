"""`korvet top`: parsing, rates, keys and the view, without a terminal."""
