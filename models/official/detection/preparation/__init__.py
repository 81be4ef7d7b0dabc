"""Annotations of any format to TFRecords, and the report on a data set."""
