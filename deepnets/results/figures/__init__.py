"""The figures of a report, in one style."""
