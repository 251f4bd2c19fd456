"""What is measured, and with which spread."""
