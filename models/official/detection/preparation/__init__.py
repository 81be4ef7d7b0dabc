"""Annotations in any format to checked TFRecords. Imports no Keras."""
