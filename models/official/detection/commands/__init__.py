"""One file per verb: arguments only."""
