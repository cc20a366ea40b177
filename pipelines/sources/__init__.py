"""Where images come from: one module a source."""
