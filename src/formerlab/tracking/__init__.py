"""Rows into MLflow."""
