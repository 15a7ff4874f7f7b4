"""Track runs in MLflow."""
