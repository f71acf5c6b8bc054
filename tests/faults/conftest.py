"""Here belongs what breaks on purpose, with real processes: killed workers and coordinators, bad starts, bad clients.

Each test asserts that every caller gets an answer and that nothing is left running.
"""
