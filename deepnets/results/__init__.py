"""Run folders read, compared and shown."""
