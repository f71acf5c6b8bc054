"""What every process that hosts services needs, whatever feeds it: HTTP, ASGI, a queue."""
