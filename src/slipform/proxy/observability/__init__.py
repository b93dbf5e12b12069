"""What is known of calls."""
