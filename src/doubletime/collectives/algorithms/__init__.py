"""One reduction algorithm a file: pure functions from a position in a line to its rounds."""
