"""What a backend declares: features, constraints, implementations, and the call that they judge."""
