"""Metrics of a split."""
