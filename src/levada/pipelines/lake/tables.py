"""Registers lakes in Spark's catalog, so that SQL finds them by name.

A Parquet lake becomes an external table. Spark lists its directories when it plans a query, instead of keeping
partitions in the catalog, so that no commit has to change the table. Spark without further jars cannot read a Delta
table by name: a Delta lake becomes a temporary view of its committed files.
"""

from typing import TYPE_CHECKING

from levada.pipelines.errors import LakeError, explain_query
from levada.pipelines.lake.delta import DeltaLake
from levada.pipelines.lake.files import PARTITION_COLUMNS
from levada.pipelines.lake.history import read_archived
from levada.pipelines.lake.lake import Lake, check_lake, lake_errors, open_lake
from levada.spark.session.session import session_or

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

VIEW = ""  # instead of a path
PARTITIONS_IN_CATALOG = "spark.sql.hive.manageFilesourcePartitions"


def register(lake: str, table: str, *, topic: str | None = None, spark: "SparkSession | None" = None) -> None:
    """Make the lake, or one topic of it, the table `table` of Spark's catalog; a table of the same place is replaced.

    The table has the columns of the archived records, and is partitioned by `topic`, unless it has only one, and
    `date`. To drop it leaves the lake as it is.
    """
    spark = session_or(spark)
    with lake_errors(lake):
        check_lake(spark, lake)
        opened = open_lake(spark, lake)
    with lake_errors(lake):
        rows = read_archived(opened, topic, spark)
    if rows is None:
        raise LakeError(f"the lake {lake} has no records{f' of {topic}' if topic else ''} yet")
    root = opened.files.root if topic is None else opened.files.path(f"topic={topic}")
    if topic is not None:
        rows = rows.drop("topic")
    if isinstance(opened, DeltaLake):
        _check_name(spark, table, VIEW)
        rows.createOrReplaceTempView(table)
    else:
        _create_table(spark, table, root, rows)


class LakeTable:
    """The table of a lake that grows: it is created with the first records, and follows the commits."""

    def __init__(self, lake: Lake, table: str, spark: "SparkSession") -> None:
        self._lake = lake
        self._table = table
        self._spark = spark
        self._schema: StructType | None = None  # of the table: with the same one new files need only a refresh
        _check_name(spark, table, VIEW if isinstance(lake, DeltaLake) else lake.files.root)

    def update(self) -> None:
        """Show the committed records of the lake, if there are any."""
        is_view = isinstance(self._lake, DeltaLake)
        schema = self._lake.schema(None)
        if schema == self._schema and schema is not None and not is_view:
            self._spark.catalog.refreshTable(self._table)
        elif schema is not None and self._lake.paths():
            register(self._lake.files.root, self._table, spark=self._spark)
            self._schema = schema


def _create_table(spark: "SparkSession", table: str, location: str, rows: "DataFrame") -> None:
    from pyspark.errors import AnalysisException

    _check_name(spark, table, location)
    if _location(spark, table) is not None:
        _replace_columns(spark, table, rows.schema)
        return
    partitions = [name for name in PARTITION_COLUMNS if name in rows.columns]
    before = spark.conf.get(PARTITIONS_IN_CATALOG)
    spark.conf.set(PARTITIONS_IN_CATALOG, "false")  # a table keeps what it was created with
    try:
        spark.sql(
            f"CREATE TABLE {table} ({rows.schema.toDDL()}) USING parquet PARTITIONED BY ({', '.join(partitions)}) "
            f"LOCATION '{_quoted(location)}'"
        )
    except AnalysisException as error:
        raise LakeError(f"cannot create the table {table}: {explain_query(error)}") from None
    finally:
        spark.conf.set(PARTITIONS_IN_CATALOG, str(before))


def _replace_columns(spark: "SparkSession", table: str, schema: "StructType") -> None:
    """Give an existing table the columns of the lake, in one step: other sessions never find it missing.

    SQL cannot add fields to a struct of such a table, or change a type.
    """
    from pyspark.sql.types import StructType

    assert spark._jvm is not None
    columns = StructType([field for field in schema.fields if field.name not in PARTITION_COLUMNS])
    known = spark.table(table).schema
    if [*columns] != [field for field in known.fields if field.name not in PARTITION_COLUMNS]:
        state = spark._jsparkSession.sessionState()
        data_type = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(columns.json())
        state.catalog().alterTableDataSchema(state.sqlParser().parseTableIdentifier(table), data_type)
    spark.catalog.refreshTable(table)


def _check_name(spark: "SparkSession", table: str, replaced: str) -> None:
    """Raise LakeError if the name is invalid, or that of a table at another path than the `replaced` one."""
    known = _location(spark, table)
    if known not in (None, replaced):
        raise LakeError(f"the table {table} exists, at {known or 'no path, as a view'}; choose another name")


def _location(spark: "SparkSession", table: str) -> str | None:
    """The path of an existing table; VIEW for a view, None if there is no table of this name."""
    from pyspark.errors import AnalysisException

    try:
        if not spark.catalog.tableExists(table):
            return None
        found = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").where("col_name = 'Location'").collect()
    except AnalysisException as error:
        raise LakeError(f"{table!r} cannot be the name of a table: {explain_query(error)}") from None
    return str(found[0].data_type) if found else VIEW


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
