"""Random damage to files of every kind: no reader or command fails with a traceback; only reading JSON may go wrong."""
