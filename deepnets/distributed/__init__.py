"""The processes that train a run together."""
