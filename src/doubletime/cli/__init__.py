"""One module per verb: parse, call, show."""
