"""The command line: commands, their output and exit codes."""
