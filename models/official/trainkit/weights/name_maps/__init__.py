"""From our variables to the names and layouts of other systems, one file a system."""
