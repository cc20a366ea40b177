"""What a command says and takes: its flags, its messages, and what they must not say."""
