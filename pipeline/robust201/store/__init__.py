"""The result store: a file's name says which part of which unit it holds, and one listing of names is the state."""
