"""What a run is: its schema, how YAML composes it, how its nodes are built, and when two runs are the same."""
