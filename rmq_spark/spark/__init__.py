"""Spark's data source: `format("rocketmq")` for batch and streams, read and write."""
