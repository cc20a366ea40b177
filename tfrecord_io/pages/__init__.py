"""HTML pages: their frame, styles, tables, charts and pictures."""
