"""A program of a user for `spark-submit`: a topic is read and written, on executors that had no Levada before.

    spark-submit ... submit_program.py BOOTSTRAP TOPIC COPY

Its last line is JSON: how many rows it has read, and where an executor has found Levada.
"""

import json
import sys

from levada.spark import session


def place(_: int) -> str:
    import levada

    return str(levada.__file__)


def main(bootstrap: str, topic: str, copy: str) -> None:
    spark = session("a submitted program")
    servers = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.read.format("levada").options(**servers, subscribe=topic).load()
    read = rows.count()
    rows.select("value").write.format("levada").mode("append").options(**servers, topic=copy).save()
    (executor,) = spark.sparkContext.parallelize([0], 1).map(place).collect()
    spark.stop()
    print(json.dumps({"read": read, "executor": executor}))


if __name__ == "__main__":
    main(*sys.argv[1:])
