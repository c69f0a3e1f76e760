"""The configuration of a run: its schema, how YAML composes it, what its nodes build, when two runs are the same."""
