"""What every room speaks in: records, errors, files, processes; no torch, no Ray."""
