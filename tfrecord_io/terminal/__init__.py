"""What commands share: flags, messages, exit codes, and the words in which they are said."""
