"""Pages to read that need no model: health, metrics, the OpenAPI document."""
