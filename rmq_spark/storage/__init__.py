"""Bytes and files: the only door to shared storage."""
