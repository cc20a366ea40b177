"""What may be wrong with a collection: leaks, copies, contradictions and shortcuts."""
