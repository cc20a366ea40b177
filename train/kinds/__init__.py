"""What a network learns and answers: each file holds the loss, measures and words of one kind."""
