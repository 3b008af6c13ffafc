"""Drop what is older than the retention: `spark-submit jobs/expire.py --help`."""

import sys

from rmq_spark.jobs.maintenance import expire

if __name__ == "__main__":
    sys.exit(expire())
