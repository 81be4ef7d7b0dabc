"""Merging submissions: the algorithms, their kernel, and the text of submissions."""
