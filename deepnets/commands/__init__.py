"""The verbs of `deepnets`: each has a module here, which parses the words of the command and makes one call."""
