"""Exported models that can be run: one Protocol, and a file for each runtime."""
