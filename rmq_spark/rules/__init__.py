"""Messaging rules: folds and decisions, one file a subject. They decide and never touch files."""
