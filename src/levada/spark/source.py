"""`format("levada")`: where Spark asks for readers and writers of topics.

Spark asks in a new process each time, at the end of every micro-batch too. So what reads is imported where it is
needed: numpy and pyarrow would cost each commit as much as all the rest of it.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from levada.spark.failures import told_plainly
from levada.spark.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class LevadaDataSource(DataSource):
    """Topics as tables."""

    @classmethod
    def name(cls) -> str:
        return "levada"

    @told_plainly()
    def schema(self) -> "StructType | str":
        from levada.spark.read.options import read_options
        from levada.spark.read.rows import table_schema

        return table_schema(read_options(self.options))

    @told_plainly()
    def reader(self, schema: "StructType") -> DataSourceReader:
        from levada.spark.read.batch import BatchReader
        from levada.spark.read.options import for_batch, read_options

        return BatchReader(for_batch(read_options(self.options)), schema)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        from levada.spark.read.options import for_stream, read_options
        from levada.spark.read.stream import RefusedReader, StreamReader

        try:
            return StreamReader(for_stream(read_options(self.options)), schema)
        except OptionError as error:
            return RefusedReader(error)

    @told_plainly()
    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from levada.spark.write.sink import batch_writer

        writer = batch_writer(self.options, schema, overwrite)
        writer.look_around()
        return writer

    @told_plainly()
    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        from levada.spark.write.sink import stream_writer

        writer = stream_writer(self.options, schema, overwrite)
        writer.look_around()
        return writer
