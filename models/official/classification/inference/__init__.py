"""The exported classifier, and its predictions for folders and records."""
