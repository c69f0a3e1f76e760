"""The verbs of `deepnets`: each has a module here, which parses the command's words and makes one call."""
