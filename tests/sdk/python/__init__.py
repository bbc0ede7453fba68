"""What the Python scripts share, and the acceptance checks by subject."""
