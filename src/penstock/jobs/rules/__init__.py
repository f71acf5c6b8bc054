"""What is decided about jobs: pure, and told the time."""
