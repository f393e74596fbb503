"""Random damage to files of every kind; no reader or command may fail with a traceback or return a wrong result."""
