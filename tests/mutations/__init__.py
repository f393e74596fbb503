"""Random damage to files of every kind: none causes a traceback, and only JSON may be misread."""
