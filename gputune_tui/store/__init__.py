"""A study is a directory of append-only journals."""
