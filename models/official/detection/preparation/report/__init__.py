"""The HTML report on a data set."""
