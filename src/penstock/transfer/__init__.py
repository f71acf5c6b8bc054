"""What carries inputs to a service, and outputs from it: files, S3, and the web."""
