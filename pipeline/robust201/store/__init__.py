"""The result store. A file's name states which part of which unit it has, so a listing shows which parts are done."""
