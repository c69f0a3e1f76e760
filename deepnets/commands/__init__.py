"""What is typed: a module per verb of `deepnets`, which parses its words and makes one call."""
