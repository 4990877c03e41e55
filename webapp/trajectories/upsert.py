"""The one way journal rows reach a table: a single multi-row INSERT … ON CONFLICT in which the newest attempt wins."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection, models

from contracts.text import clean


def upsert_newest(model: type[models.Model], keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows (database column -> value) that share their columns; a row of an older attempt never
    replaces one of a newer. Of two rows with one key the later wins: Postgres refuses both in one statement."""
    if not rows:
        return
    cleaned = [clean(dict(row)) for row in rows]
    by_key = {tuple(row[k] for k in keys): row for row in cleaned}
    quote = connection.ops.quote_name
    table, columns = quote(model._meta.db_table), list(cleaned[0])
    names = ", ".join(map(quote, columns))
    target = ", ".join(map(quote, keys))
    changed = ", ".join(f"{quote(c)} = excluded.{quote(c)}" for c in columns if c not in (*keys, "created_at"))
    statement = (
        f"INSERT INTO {table} AS stored ({names}) "  # noqa: S608  names are the model's own
        f"SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, %s::jsonb) "
        f"ON CONFLICT ({target}) DO UPDATE SET {changed} WHERE stored.attempt <= excluded.attempt"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [json.dumps(list(by_key.values()))])
