"""The classifier, its losses, and the names of its head in weights of other origins."""
