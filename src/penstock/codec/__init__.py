"""Objects to bytes and back: pure, per item."""
