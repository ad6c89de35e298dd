"""What a person types. Heavy imports stand inside the commands, so that `--help` answers at once."""
