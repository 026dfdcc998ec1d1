"""Facts to findings: one pure function for each kind of fault."""
