"""The edge: reads argv and the environment, builds the objects, runs them."""
