"""The commands `analyze.py WHAT`, one module each: it reads the options, draws the figures and writes the files.

The functions that measure are in the module of `deepnets.analysis` with the same name. If they are short and only one
command needs them, they are in the command's module. `subject` finds the network and its data for all commands, and
`output` writes their files.
"""
