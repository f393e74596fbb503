"""The result store. A file is named after the unit and part whose results it has, so a listing shows what is done."""
