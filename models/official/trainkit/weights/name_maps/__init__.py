"""Maps our variables to the names and layouts of other frameworks, one file per framework."""
