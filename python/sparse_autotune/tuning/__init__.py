"""Using the tuner directly, and what it tells."""
