"""Translation of the `$` words in the texts of the views to the SQL of DataFusion and Spark.

Stage: under `anabranch.query.views`. Patterns are regular expressions with the same meaning in Rust and Java.

- `$micros(instant)`          microseconds since 1970, an integer
- `$instant(millis)`           the inverse, of milliseconds
- `$first(text, pattern)`     the match of the first group of the pattern; null: no match
- `$last(value, order, …)`    the last value of a group that is not null, in the order of one or two columns
- `$unescaped(text)`          the text of an escaped JSON string without its quotes
- `$count(text, pattern)`     the number of matches
- `$pieces(text, pattern)`    in a list of columns: a row for each part of the text that begins with a match
- `$parts(text)`              in a list of columns: a row for each part between commas
- `$series(from, to, unit)`   in a list of columns: a row for each beginning of an hour or a day of the interval
- `$now`                      this instant
"""

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.query.views.scanning import Rewrite, replace_word, rewrite_calls


@dataclass(frozen=True)
class Dialect:
    """Translation for one engine."""

    calls: Mapping[str, Rewrite]
    now: str

    def translate(self, sql: str) -> str:
        """Return a view's text for the engine."""
        return replace_word(rewrite_calls(sql, self.calls), "$now", self.now)


_MARK = "\x01"
"""Separator that never occurs in JSON, which escapes it."""
_MICROS = "arrow_cast({0}, 'Timestamp(Microsecond, Some(\"UTC\"))')"

DATAFUSION = Dialect(
    {
        "$micros": lambda a: f"CAST({_MICROS.format(*a)} AS BIGINT)",
        "$instant": lambda a: _MICROS.format(f"to_timestamp_millis({a[0]})"),
        "$first": lambda a: f"regexp_match({a[0]}, {a[1]})[1]",
        # DataFusion has no such function: `anabranch.query.sql` inserts the values, which it reads from the lake.
        "$unescaped": lambda a: a[0],
        "$last": lambda a: f"last_value({a[0]} ORDER BY {', '.join(a[1:])}) FILTER (WHERE {a[0]} IS NOT NULL)",
        "$count": lambda a: f"coalesce(regexp_count({a[0]}, {a[1]}), 0)",
        "$pieces": lambda a: (
            f"unnest(string_to_array(regexp_replace({a[0]}, '(' || {a[1]} || ')', '{_MARK}$1', 'g'), '{_MARK}'))"
        ),
        "$parts": lambda a: f"unnest(string_to_array({a[0]}, ','))",
        "$series": lambda a: f"unnest(generate_series(date_trunc('{a[2]}', {a[0]}), {a[1]}, INTERVAL '1 {a[2]}'))",
    },
    _MICROS.format("now()"),
)
"""Engine of the deltalake package."""

SPARK = Dialect(
    {
        "$micros": lambda a: f"unix_micros({a[0]})",
        "$instant": lambda a: f"timestamp_millis({a[0]})",
        "$first": lambda a: f"nullif(regexp_extract({a[0]}, r{a[1]}, 1), '')",
        "$unescaped": lambda a: f"from_json(concat('[\"', {a[0]}, '\"]'), 'array<string>')[0]",
        "$last": lambda a: f"max_by({a[0]}, struct({', '.join(a[1:])})) FILTER (WHERE {a[0]} IS NOT NULL)",
        "$count": lambda a: f"coalesce(regexp_count({a[0]}, r{a[1]}), 0)",
        "$pieces": lambda a: f"explode(split({a[0]}, concat('(?=', r{a[1]}, ')')))",
        "$parts": lambda a: f"explode(split({a[0]}, ','))",
        "$series": lambda a: f"explode(sequence(date_trunc('{a[2]}', {a[0]}), {a[1]}, INTERVAL '1' {a[2]}))",
    },
    "current_timestamp()",
)
"""Spark SQL, in a session with time zone UTC."""
