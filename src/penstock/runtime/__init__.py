"""Drives the pure core with real time, tasks and processes."""
