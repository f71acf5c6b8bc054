"""The job queue: jobs that a store keeps, and that consumers take through a service."""
