"""Defines a run's settings, composes them from YAML, builds the objects they name, and says when two runs are equal."""
