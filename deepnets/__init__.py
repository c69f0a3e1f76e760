"""deepnets: train very deep networks from YAML, and measure what lets depth work."""
