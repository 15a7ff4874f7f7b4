"""Rows of one study, selected and derived for its figures, tables and claims."""
