"""Starts Spark with settings that suit topics, and finds the Java and the SPARK_HOME that it uses."""
