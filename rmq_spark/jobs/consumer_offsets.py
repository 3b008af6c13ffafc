"""Bring the table of consumer offsets to the end of the logs: `python -m rmq_spark.jobs.consumer_offsets --help`."""

import sys

from rmq_spark.jobs.reput import consumer_offsets

if __name__ == "__main__":
    sys.exit(consumer_offsets())
