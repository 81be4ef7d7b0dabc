"""Open Images: class groups, hierarchy, and its CSV files as a source."""
