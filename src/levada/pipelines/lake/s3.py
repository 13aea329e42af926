"""Gives the `deltalake` package the settings of S3 that Spark has."""

from levada.pipelines.lake.files import Files

SCHEME = "s3a://"
# By setting of Hadoop below fs.s3a: that of the package.
OPTIONS = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": "AWS_REGION",
}


def storage_options(files: Files) -> dict[str, str]:
    """The options for a lake on S3; empty for other lakes.

    What Spark does not set comes from the environment and the instance, as it does for Spark.
    """
    if not files.root.startswith(SCHEME):
        return {}
    found = {option: _setting(files, name) for name, option in OPTIONS.items()}
    endpoint = _setting(files, "endpoint")
    if endpoint is not None and "://" not in endpoint:
        is_plain = _setting(files, "connection.ssl.enabled") == "false"
        endpoint = f"{'http' if is_plain else 'https'}://{endpoint}"
    if endpoint is not None:
        found |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    return {option: value for option, value in found.items() if value is not None}


def _setting(files: Files, name: str) -> str | None:
    """A setting of the lake's bucket, or of all buckets."""
    bucket = files.root.removeprefix(SCHEME).partition("/")[0]
    return files.setting(f"fs.s3a.bucket.{bucket}.{name}") or files.setting(f"fs.s3a.{name}") or None
