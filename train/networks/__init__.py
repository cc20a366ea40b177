"""The networks and their optimizers."""
