"""A trained model as a folder: what is in it, how it is written, and how it is proved."""
