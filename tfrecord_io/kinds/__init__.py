"""The kinds of label: each file says how tables, records and counts hold one kind."""
