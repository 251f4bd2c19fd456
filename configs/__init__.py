"""Configs by name; `configs/default.py` explains every field."""
