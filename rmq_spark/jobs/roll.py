"""Roll logs into segments: `python -m rmq_spark.jobs.roll --help`."""

import sys

from rmq_spark.jobs.maintenance import roll

if __name__ == "__main__":
    sys.exit(roll())
