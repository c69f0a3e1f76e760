"""The verbs of `deepnets`: the module of each verb parses the command's words and makes one call."""
