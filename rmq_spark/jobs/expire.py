"""Drop what is older than the retention: `python -m rmq_spark.jobs.expire --help`."""

import sys

from rmq_spark.jobs.maintenance import expire

if __name__ == "__main__":
    sys.exit(expire())
