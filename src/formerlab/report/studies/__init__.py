"""Select and derive the rows of one study for its figures, tables and claims."""
