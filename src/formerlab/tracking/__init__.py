"""Tracking of runs in MLflow."""
