"""The command line: verbs by group, what they print, and exit codes."""
