"""Files that `penstock generate` prints, one for each kind of deployment: pure functions of checked descriptions."""
