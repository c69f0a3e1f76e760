"""Why depth works, measured: functions of a model and data that return numbers."""
