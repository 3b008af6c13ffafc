"""Bring the tables to the end of the logs: `spark-submit jobs/reput.py --help`."""

import sys

from rmq_spark.jobs.reput import reput

if __name__ == "__main__":
    sys.exit(reput())
