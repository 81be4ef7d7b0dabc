"""Export, the exported model, and its predictions for folders, records and videos."""
