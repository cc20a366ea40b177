"""What predictions are worth, in numbers and words, by the kind of label."""
