"""Work on many processes or machines, in steps that resume."""
