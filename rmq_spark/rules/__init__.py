"""Messaging rules: values in, decisions out. Nothing here reads or writes a file, asks a clock or draws a number."""
