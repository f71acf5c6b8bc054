"""What clients may ask of a service: one thin file for each protocol."""
