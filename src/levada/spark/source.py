"""The DataSource behind `format("levada")`: gives Spark the readers and writers of topics.

Spark calls it in a new process each time, also at the end of every micro-batch. So readers and writers are imported
where they are needed: numpy and pyarrow would cost each commit as much as all the rest of it.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from levada.spark.errors import EXPLAINED, spark_callback

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from levada.spark.read.rows import ReaderSchemas


class LevadaDataSource(DataSource):
    """Topics as tables."""

    # Chosen by `schema`, which Spark calls unless the user gives one, before it pickles this instance for the readers.
    _readers: "ReaderSchemas | None" = None

    @classmethod
    def name(cls) -> str:
        return "levada"

    @spark_callback()
    def schema(self) -> "StructType | str":
        from levada.spark.read.options import read_options
        from levada.spark.read.rows import reader_schemas, table_schema

        options = read_options(self.options)
        self._readers = reader_schemas(options)
        return table_schema(options, self._readers)

    @spark_callback()
    def reader(self, schema: "StructType") -> DataSourceReader:
        from levada.spark.read.batch import BatchReader
        from levada.spark.read.options import for_batch, read_options

        return BatchReader(for_batch(read_options(self.options)), schema, self._readers)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        from levada.spark.read.options import for_stream, read_options
        from levada.spark.read.stream import FailedReader, StreamReader

        try:
            return StreamReader(for_stream(read_options(self.options)), schema, self._readers)
        except EXPLAINED as error:
            return FailedReader(error)

    @spark_callback()
    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from levada.spark.write.jobs import batch_writer

        writer = batch_writer(self.options, schema, overwrite)
        writer.check_cluster()
        writer.register_schemas(schema)
        return writer

    @spark_callback()
    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        from levada.spark.write.sink import stream_writer

        writer = stream_writer(self.options, schema, overwrite)
        writer.check_cluster()
        return writer
