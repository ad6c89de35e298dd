"""What this host is and allows: below every other room."""
