"""Self-contained HTML pages: builders, charts, drawing."""
