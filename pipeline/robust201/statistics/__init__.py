"""Statistics of results: functions of numbers and arrays that read no files; no torch."""
