"""Optional features, a module each; the commands call them."""
