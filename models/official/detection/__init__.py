"""Object detection: from raw boxes to a ranked submission."""
