"""The commands `analyze.py WHAT`, a module each: ask, draw and write.

The functions that measure are in the module of `deepnets.analysis` with the same name. Where they are short and only
one command needs them, they are in the command's module, at its end.
"""
