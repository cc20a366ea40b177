"""Training: one network, or the folds of a cross-validation one after the other."""
