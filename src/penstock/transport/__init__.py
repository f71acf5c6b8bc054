"""The wire between coordinator and workers: framing and channels, both ends."""
