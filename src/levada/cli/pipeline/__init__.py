"""`levada pipeline`: the commands that run pipelines on Spark."""
