"""How a network learns: the loop, an iteration, and what a run is assembled from."""
