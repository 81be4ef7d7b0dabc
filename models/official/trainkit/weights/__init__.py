"""Weights of other systems: read from their files, and loaded into our models."""
