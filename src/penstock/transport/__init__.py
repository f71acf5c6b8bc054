"""The room of the wire between coordinator and workers: framing and channels, both ends."""
