"""Powers beside the way of a build: each can be deleted with its lines in the command."""
