"""Empty the tables and fill them from the logs: `spark-submit jobs/rebuild.py --help`."""

import sys

from rmq_spark.jobs.reput import rebuild

if __name__ == "__main__":
    sys.exit(rebuild())
