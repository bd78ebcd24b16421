-- Applied actions that were undone by their opposite within an hour: a split whose children were merged, a merge whose
-- child was split.
-- version: 2
-- like: thrash_since
SELECT topic, action, segments, reason, decision_id, applied_at, undone_by, undone_reason, undone_at, seconds_between
FROM thrash_since(TIMESTAMP '1970-01-01 00:00:00')
