"""What a command and a run need of the system below them: streams, files, lines on the console."""
