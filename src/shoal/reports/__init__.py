"""What runs and sweeps have to show, read from their folders alone, without Ray."""
