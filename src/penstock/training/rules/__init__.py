"""What is decided about the tasks of a training run: pure, and told the time."""
