"""What runs in a worker process: the stage a user wrote, and the loop around it."""
