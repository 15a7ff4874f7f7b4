"""Write, read and export the rows of results on disk."""
