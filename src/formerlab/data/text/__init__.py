"""Prepare text files and document collections as token streams."""
