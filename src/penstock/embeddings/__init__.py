"""Embedding tables trained outside the model."""
