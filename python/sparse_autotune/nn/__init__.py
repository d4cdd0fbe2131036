"""Layers with block-sparse weights, and what makes them and changes their patterns."""
