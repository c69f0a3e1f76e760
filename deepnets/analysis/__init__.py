"""Measurements that show why depth works: functions of a network and data that return numbers."""
