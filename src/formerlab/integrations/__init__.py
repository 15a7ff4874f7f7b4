"""Integrations with transformers and timm."""
