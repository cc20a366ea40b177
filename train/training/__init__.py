"""Training: one network, the folds of a cross-validation, or many heads side by side."""
