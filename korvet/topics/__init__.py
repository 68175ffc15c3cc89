"""The broker's topics: names, configs, and the directory of topics with their partition logs."""
