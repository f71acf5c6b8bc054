"""What `penstock generate` prints: a file for each kind of deployment, each a pure function of a checked description."""
