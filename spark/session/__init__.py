"""The Spark session: jars, the bundle for executors, Hadoop's folders, failures in one line."""
