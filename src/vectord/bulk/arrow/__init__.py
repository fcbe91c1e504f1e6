"""Parquet and Arrow, in and out: the one folder of bulk/ that imports pyarrow, an extra."""
