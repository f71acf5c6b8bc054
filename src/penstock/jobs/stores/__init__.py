"""Where jobs are kept: one file for each kind of store."""
