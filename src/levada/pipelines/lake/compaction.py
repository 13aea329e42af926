"""Small files of a lake become large ones, in one commit each time; readers see the records of both once."""

from typing import TYPE_CHECKING, NamedTuple

from levada.pipelines.lake.lake import Lake, LakeFile, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Sizes(NamedTuple):
    """When files are too many and too small."""

    small_bytes: int = 64 << 20  # a smaller file should be joined with others
    files_max: int = 16  # so many small ones may lie in a directory


SIZES = Sizes()


def too_small(state: State, sizes: Sizes) -> dict[str, list[LakeFile]]:
    """The directories with too many small files, and those files (pure)."""
    small: dict[str, list[LakeFile]] = {}
    for file in state.files.values():
        if file.size < sizes.small_bytes:
            small.setdefault(file.directory, []).append(file)
    return {directory: files for directory, files in small.items() if len(files) > sizes.files_max}


def compact(spark: "SparkSession", lake: Lake, sizes: Sizes) -> int:
    """Join small files, directory by directory; how many went."""
    gone = 0
    for directory, files in too_small(lake.state, sizes).items():
        area = lake.staging()
        paths = [lake.files.path(file.path) for file in files]
        pieces = max(1, sum(file.size for file in files) // sizes.small_bytes)
        rows = spark.read.parquet(*paths)  # plain files: topic and date are in the name of the directory
        if pieces == 1:
            rows = rows.coalesce(1).sortWithinPartitions("partition", "offset")
        else:
            rows = rows.repartitionByRange(int(pieces), "partition", "offset").sortWithinPartitions(
                "partition", "offset"
            )
        rows.write.mode("overwrite").parquet(lake.files.path(f"{area}/{directory}"))
        lake.commit(removed=[file.path for file in files])
        gone += len(files)
    return gone
