"""The commands `analyze.py WHAT`, a module each: it asks, draws and writes.

The functions that measure are in the module of `deepnets.analysis` with the same name. Where they are short and only
one command needs them, they are in the command's module. `subject` finds the network and its data for all commands,
`output` writes their files.
"""
