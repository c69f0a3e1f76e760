"""Trains a network: the loop, how an iteration is executed, and how a run is assembled from its configuration."""
