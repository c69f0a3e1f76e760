"""The data sets, and how their images reach the device."""
